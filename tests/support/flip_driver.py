"""Restores a run again and again with a bit of one reading wrong, and prints what came of it, a JSON line a reading.

python flip_driver.py WAY FOLDER LARGE STRIDE, with flip_reads.c preloaded. WAY is one, two, archived, encrypted, ddp or
fsdp2, or what `python -m application` is given on the run FOLDER/run. The first line is of readings that are right.
LARGE is the size from which a file is read in pieces, STRIDE how many readings each one that is wrong stands for.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import distributed

from holdfast.adapters.event_bus.memory import MemoryEventBus
from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.optimizer.pipeline_engine import Parallelism
from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.process_group.torch import TorchProcessGroup
from holdfast.adapters.state_store import verified_read
from holdfast.adapters.state_store import verified_read as hashed_file
from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
from holdfast.adapters.state_store.archive.lease import ArchiveLease
from holdfast.adapters.state_store.archive.local_object_store import LocalObjectStore
from holdfast.adapters.state_store.checkpoint_encryption import CheckpointEncryption
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.tiered import TieredStateStore
from holdfast.application.checkpointer import Checkpointer, MemoryTier, Restorer
from holdfast.application.inbox import Inbox
from holdfast.bootstrap.cli.main import main as command_line
from holdfast.bootstrap.process.exit_codes import end_with
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.commands import SaveReason
from holdfast.domain.errors import StateError
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.testing.optimizer import END_OF_TEXT, VOCABULARY_SIZE, packed_batch, take_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHIM = ctypes.CDLL(None)
LLAMA = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
LLAMA |= {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
RATE = 0.01


def arm(folder: Path, number: int) -> None:
    SHIM.flip_arm(os.fsencode(folder), ctypes.c_long(number))


class Restored:
    """A run of one or of several ranks whose newest checkpoint is restored."""

    def __init__(self, way: str, root: Path) -> None:
        self.way, self.root = way, root
        self.is_on_ranks = way in ("ddp", "fsdp2")
        self.group = TorchProcessGroup(60) if self.is_on_ranks else SingleProcessGroup()
        self.model = HuggingfaceModelFactory(config=LLAMA).build(
            vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0
        )
        parallelism = Parallelism(sharding=way if self.is_on_ranks else "auto")
        optimizer = AccelerateOptimizer(device="cpu", precision="fp32", parallelism=parallelism)
        self.trainable = optimizer.prepare(self.model)
        self.objects = LocalObjectStore(root / "archive")
        (root / "scratch").mkdir(exist_ok=True)

    def disk(self) -> DiskStateStore:
        scratch = self.root / "scratch"
        encryption = CheckpointEncryption(MemoryKeyProvider(b"k" * 32), scratch) if self.way == "encrypted" else None
        return DiskStateStore(self.root / "run", Retention(2), encryption=encryption)

    @contextlib.contextmanager
    def store(self) -> Iterator[Any]:
        if self.way != "archived":
            yield self.disk()
            return
        disk, lease = self.disk(), ArchiveLease(self.objects, say=lambda _: None)
        archive = CheckpointArchive(self.objects, lease=lease)
        store = TieredStateStore(disk, archive, lease, Retention(3), tell=lambda _: None, patience=10)
        with store.archiving():
            yield store
            store.flush()

    def save(self) -> None:
        """Save the states behind two steps and behind three, or behind three alone."""
        with self.store() as store:
            saved = Checkpointer(store, self.trainable, MemoryEventBus(), self.group, Inbox())
            for step in (1, 2, 3):
                take_step(self.trainable, packed_batch(seed=step), step=step, rate=RATE)
                if step == 3 or (step == 2 and self.way != "one"):
                    saved.save(Progress(step, step), SaveReason.FINAL)
        if self.group.rank == 0:
            shutil.copytree(self.root / "run", self.root / "sound", dirs_exist_ok=True)
        self.group.barrier()

    def again(self, number: int) -> dict[str, Any]:
        """Put the folder back, restore with the reading ``number`` wrong, and return what the next step makes of it."""
        if self.group.rank == 0:
            shutil.rmtree(self.root / "run")
            if self.way != "archived" or number % 2:  # else all comes from the archive
                shutil.copytree(self.root / "sound", self.root / "run")
        self.group.barrier()
        found: dict[str, Any] = {"number": number, "rank": self.group.rank}
        with self.store() as store:
            restoring = Restorer(store, self.trainable, MemoryEventBus(), self.group, MemoryTier())
            is_mine = number % self.group.size == self.group.rank
            arm(self.root / ("" if self.way == "archived" else "run"), number // self.group.size if is_mine else -1)
            try:
                info = restoring.from_store()
                found["step"] = info and info.progress.step
            except StateError as error:
                found["error"] = str(error)
            found["count"] = SHIM.flip_count()
            arm(self.root / "nothing", -1)
        if "error" not in found:
            take_step(self.trainable, packed_batch(seed=9), step=9, rate=RATE)
            found["state"] = self.digest()
        return found

    def digest(self) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self.model.network.state_dict().items()):
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
            digest.update(name.encode() + local.detach().contiguous().numpy().tobytes())
        return digest.hexdigest()


class Commanded:
    """A command on a trained run, whose output is what counts."""

    def __init__(self, arguments: list[str], root: Path) -> None:
        self.arguments, self.root = arguments, root

    def save(self) -> None:
        shutil.copytree(self.root / "run", self.root / "sound")

    def again(self, number: int) -> dict[str, Any]:
        shutil.rmtree(self.root / "run")
        shutil.rmtree(self.root / "made", ignore_errors=True)
        shutil.copytree(self.root / "sound", self.root / "run")
        output, errors = io.StringIO(), io.StringIO()
        arm(self.root / "run", number)
        with contextlib.chdir(self.root), contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = command_line(self.arguments)
        found = {"number": number, "rank": 0, "count": SHIM.flip_count()}
        arm(self.root / "nothing", -1)
        if code:
            return found | {"error": f"{code}: {errors.getvalue()}"}
        made = sorted(path for path in (self.root / "made").rglob("*") if path.is_file())
        step = next((step for step in (2, 3) if f"checkpoint-{step}" in output.getvalue()), None)
        told = b"".join([output.getvalue().encode(), *(path.name.encode() + path.read_bytes() for path in made)])
        return found | {"step": step, "state": hashlib.sha256(told).hexdigest()}


def sweep(run: Restored | Commanded, stride: int, tell: Callable[[dict[str, Any]], object]) -> None:
    first = run.again(-1)
    tell(first)
    size = run.group.size if isinstance(run, Restored) else 1
    group = run.group if isinstance(run, Restored) else SingleProcessGroup()
    last = max(int(count) for count in group.gather(str(first["count"])))
    for number in range(0, last * size, stride):
        tell(run.again(number))


def main(way: str, folder: str, large: str, stride: str) -> int:
    verified_read._LARGE = int(large)
    hashed_file._PIECE = 16384
    words = way.split()
    root = Path(folder)
    run = Commanded(words, root) if words[0] in ("generate", "evaluate", "export") else Restored(way, root)
    run.save()
    with (root / f"found-{os.environ.get('RANK', '0')}").open("w") as file:
        sweep(run, int(stride), lambda found: file.write(json.dumps(found) + "\n"))
    if distributed.is_initialized():
        distributed.barrier()
    return 0


if __name__ == "__main__":
    end_with(lambda: main(*sys.argv[1:]))
