"""Ways of keeping the state, each an object whose methods take a turn and answer with what they found."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING, Any, final

import torch

from benchmarks.state.files import drop_from_memory, make_durable, read_raw, touched_buffer, write_raw
from benchmarks.state.material import (
    build_torch,
    build_trainable,
    captured_tensors,
    digest,
    spoil,
    tensors_of,
)
from holdfast.adapters.event_bus.memory import MemoryEventBus
from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.shared.tensor_state.file_parts import TextPart
from holdfast.adapters.state_store.checkpoint_encryption import CheckpointEncryption
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.application.checkpointer import Checkpointer
from holdfast.application.inbox import Inbox
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.commands import SaveReason
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.state_store import OpenFile

_KEY = bytes(range(32))
_OLDER = 1  # the step of a checkpoint that is older than all others


def _take_over(trainable: Trainable, folder: Path, open_file: OpenFile) -> None:
    trainable.restore(folder, open_file=open_file)


@contextlib.contextmanager
def _timed(answer: dict[str, Any]) -> Iterator[None]:
    faults, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
    yield
    answer["seconds"] = time.perf_counter() - began
    answer["pages"] = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults


def _empty(folder: Path) -> None:
    """Delete what lies in ``folder``, and wait until the disk has nothing left to write."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    os.sync()


@final
class Holdfast:
    """Holdfast's checkpoints: by ``stall`` in the background, by ``save`` until durable, by ``write`` what is captured.

    ``sealed`` encrypts them.
    """

    def __init__(self, material: Path, folder: Path, *, sealed: bool = False) -> None:
        self._trainable = build_trainable(material)
        self._folder = folder
        (folder / "run").mkdir(parents=True)
        encryption = CheckpointEncryption(MemoryKeyProvider(_KEY), folder) if sealed else None
        self._store = DiskStateStore(folder / "run", Retention(2), encryption=encryption)
        self._inbox = Inbox()
        self._bus = MemoryEventBus()
        self._step = _OLDER

    def stall(self) -> dict[str, Any]:
        """Save while training goes on; the clock stops when it may."""
        return self._saved(SaveReason.PERIODIC)

    def save(self) -> dict[str, Any]:
        """Save, and wait until that is durable."""
        return self._saved(SaveReason.FINAL)

    def write(self) -> dict[str, Any]:
        """Store what was captured before the clock starts."""
        self._clear()
        answer: dict[str, Any] = {}
        snapshot = Snapshot(Progress(step=self._next()), "final", self._trainable.capture())
        with _timed(answer):
            info = self._store.save(snapshot)
        return answer | {"bytes": info.num_bytes}

    def restore(self) -> dict[str, Any]:
        """Verify the newest checkpoint and go on from it; a small older one lies beside it."""
        if len(self._store.list()) == 1:
            self._store.save(Snapshot(Progress(step=_OLDER), "final", [TextPart("older.txt", "not large")]))
        answer: dict[str, Any] = {"is_cold": drop_from_memory(self._folder / "run" / "checkpoints")}
        with _timed(answer):
            loaded = self._store.restore(partial(_take_over, self._trainable))
        assert loaded.info is not None
        assert loaded.info.progress.step == self._step, "it went on from another checkpoint"
        return answer

    def spoil(self) -> dict[str, Any]:
        """Change the state."""
        spoil(self._trainable)
        return {}

    def digest(self) -> dict[str, Any]:
        """Tell the state's hash."""
        return {"digest": digest(captured_tensors(self._trainable.capture()))}

    def _saved(self, reason: SaveReason) -> dict[str, Any]:
        self._clear()
        answer: dict[str, Any] = {}
        checkpoints = Checkpointer(self._store, self._trainable, self._bus, SingleProcessGroup(), self._inbox)
        with _timed(answer):
            checkpoints.save(Progress(step=self._next()), reason)
        began = time.perf_counter()
        checkpoints.flush()
        answer["behind"] = time.perf_counter() - began
        return answer | {"bytes": self._store.list()[-1].num_bytes}

    def _next(self) -> int:
        self._step += 1
        return self._step

    def _clear(self) -> None:
        _empty(self._folder / "run")
        self._bus.published.clear()
        self._inbox.drain()


@final
class Raw:
    """One file with the bytes of the state, and a copy of its tensors in memory: what no checkpoint can do without."""

    def __init__(self, material: Path, folder: Path) -> None:
        self._network, self._optimizer = build_torch(material)
        self._folder = folder
        tensors = tensors_of(self._network, self._optimizer)
        self._buffer = touched_buffer(sum(tensor.nbytes for tensor in tensors.values()))
        folder.mkdir()

    def stall(self) -> dict[str, Any]:
        """Copy the tensors."""
        answer: dict[str, Any] = {}
        tensors = tensors_of(self._network, self._optimizer)
        with _timed(answer):
            copies = {name: tensor.clone() for name, tensor in tensors.items()}
        return answer | {"bytes": sum(tensor.nbytes for tensor in copies.values())}

    def write(self) -> dict[str, Any]:
        """Write and hash one file until it is durable."""
        _empty(self._folder)
        data = self._captured()
        answer: dict[str, Any] = {"bytes": len(data)}
        with _timed(answer):
            write_raw(self._folder / "state", data)
        return answer

    def restore(self) -> dict[str, Any]:
        """Read what ``write`` left."""
        answer: dict[str, Any] = {"is_cold": drop_from_memory(self._folder)}
        with _timed(answer):
            size = read_raw(self._folder, self._buffer)
        return answer | {"bytes": size}

    def digest(self) -> dict[str, Any]:
        """Tell the state's hash."""
        return {"digest": digest(tensors_of(self._network, self._optimizer))}

    def _captured(self) -> memoryview:
        end = 0
        for tensor in tensors_of(self._network, self._optimizer).values():
            self._buffer[end : end + tensor.nbytes] = _bytes_of(tensor)
            end += tensor.nbytes
        return self._buffer


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


class _Live:
    """A network and AdamW, spoilt by zeros."""

    def __init__(self, material: Path, folder: Path) -> None:
        self.network, self.optimizer = build_torch(material)
        self.folder = folder
        folder.mkdir()

    def spoil(self) -> dict[str, Any]:
        """Change the state."""
        for tensor in tensors_of(self.network, self.optimizer).values():
            tensor.zero_()
        return {}

    def digest(self) -> dict[str, Any]:
        """Tell the state's hash."""
        return {"digest": digest(tensors_of(self.network, self.optimizer))}


@final
class TorchSave(_Live):
    """``torch.save`` into one file."""

    def save(self) -> dict[str, Any]:
        """Save, and wait until that is durable."""
        _empty(self.folder)
        answer: dict[str, Any] = {}
        with _timed(answer):
            state = {"model": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, self.folder / "state.pt")
            make_durable(self.folder)
        return answer

    def restore(self) -> dict[str, Any]:
        """Read the file and go on from it."""
        answer: dict[str, Any] = {"is_cold": drop_from_memory(self.folder)}
        with _timed(answer):
            state = torch.load(self.folder / "state.pt", weights_only=True)
            self.network.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        return answer


@final
class DistributedCheckpoint(_Live):
    """``torch.distributed.checkpoint.async_save`` in one process, its staging buffers kept from save to save.

    ``staging`` is thread (the copy is made in a thread too, and the clock stops when it is made) or caller.
    """

    def __init__(self, material: Path, folder: Path, *, staging: str) -> None:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

        super().__init__(material, folder)
        self._stager = DefaultStager(StagingOptions(False, False, staging == "thread", False))

    def stall(self) -> dict[str, Any]:
        """Save while training goes on; the clock stops when the parameters may change."""
        from torch.distributed.checkpoint.state_dict_saver import async_save

        _empty(self.folder)
        answer: dict[str, Any] = {}
        with _timed(answer):
            state = {"model": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
            saving: Any = async_save(
                state, checkpoint_id=self.folder / "state", async_stager=self._stager, no_dist=True
            )
            if hasattr(saving, "staging_completion"):
                saving.staging_completion.result()
        (saving.upload_completion if hasattr(saving, "upload_completion") else saving).result()
        return answer

    def restore(self) -> dict[str, Any]:
        """Read the files and go on from them."""
        from torch.distributed.checkpoint.state_dict_loader import load

        answer: dict[str, Any] = {"is_cold": drop_from_memory(self.folder)}
        with _timed(answer):
            state = {"model": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}
            load(state, checkpoint_id=self.folder / "state", no_dist=True)
            self.network.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        return answer


@final
class HuggingFaceTrainer(_Live):
    """Hugging Face Trainer's own checkpoint."""

    def __init__(self, material: Path, folder: Path) -> None:
        from transformers import Trainer, TrainingArguments

        super().__init__(material, folder)
        scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer)
        arguments = TrainingArguments(output_dir=str(folder), report_to="none", disable_tqdm=True, use_cpu=True)
        self._trainer: Any = Trainer(model=self.network, args=arguments, optimizers=(self.optimizer, scheduler))
        self._trainer.state.global_step = 1

    def save(self) -> dict[str, Any]:
        """Save, and wait until that is durable; ``as_it_is`` is Trainer's own part, which syncs nothing."""
        _empty(self.folder)
        answer: dict[str, Any] = {}
        began = time.perf_counter()
        with _timed(answer):
            self._trainer._save_checkpoint(self.network, trial=None)  # noqa: SLF001  what it calls at each save
            answer["as_it_is"] = time.perf_counter() - began
            make_durable(self.folder)
        return answer

    def restore(self) -> dict[str, Any]:
        """Resume as ``train(resume_from_checkpoint=...)`` does."""
        answer: dict[str, Any] = {"is_cold": drop_from_memory(self.folder)}
        folder = str(self.folder / "checkpoint-1")
        with _timed(answer):
            self._trainer._load_from_checkpoint(folder)  # noqa: SLF001
            self._trainer._load_optimizer_and_scheduler(folder)  # noqa: SLF001
            self._trainer._load_rng_state(folder)  # noqa: SLF001
        return answer


WAYS: dict[str, Callable[[Path, Path], Any]] = {
    "holdfast": Holdfast,
    "encrypted": lambda material, folder: Holdfast(material, folder, sealed=True),
    "raw": Raw,
    "torch.save": TorchSave,
    "trainer": HuggingFaceTrainer,
    "async_save": lambda material, folder: DistributedCheckpoint(material, folder, staging="caller"),
    "async_save, staged in a thread": lambda material, folder: DistributedCheckpoint(
        material, folder, staging="thread"
    ),
}
