"""Measures the host memory that each rank takes to build, save and restore a model, beside what it holds already.

One process a rank; the first one prints the bytes of each phase, and the bound, for all ranks.
"""

from __future__ import annotations

import ctypes
import gc
import json
import re
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed

from holdfast.adapters.event_bus.blinker import BlinkerEventBus
from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer import accelerate
from holdfast.adapters.process_group.torch import TorchProcessGroup
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.application.checkpointer import Checkpointer
from holdfast.application.inbox import Inbox
from holdfast.bootstrap.process.exit_codes import end_with
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.commands import SaveReason
from holdfast.domain.training.step_outcome import Progress
from tests.support.engine_ranks import RANK, SIZE, optimizer_of

SHAPE = {
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "max_position_embeddings": 64,
    "vocab_size": 16_384,
}
SMALL = SHAPE | {"hidden_size": 96, "intermediate_size": 256, "vocab_size": 512}
COPIES = 3  # of a weight in a periodic save: itself, and AdamW's two moments
ALLOWED = 1.2
_libc = ctypes.CDLL("libc.so.6")


class Memory:
    """The memory of this process that no file backs, as phases take it."""

    def __init__(self):
        self.found = {}

    @contextmanager
    def phase(self, name):
        """Note the most bytes that this process holds within the block more than before it."""
        gc.collect()
        _libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before, files = status("RssAnon"), status("RssFile")
        self._noted = None
        yield
        peak = self._noted if self._noted is not None else status("VmHWM")
        self.found[name] = peak - files - before

    def note(self):
        """End the phase here, although its block goes on."""
        self._noted = status("VmHWM") if self._noted is None else self._noted


def status(name):
    text = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)[1]) * 1024


def factory_of(kind, config, folder):
    """Return a factory for the decoder, or for a Llama of transformers of the same shape."""
    if kind == "decoder":
        return DecoderModelFactory(config=None if folder else config, path=folder)
    return HuggingfaceModelFactory(config=None if folder else {"model_type": "llama", **config}, path=folder)


def prepared(engine, config, memory, phase, folder=None, *, kind="decoder", deferred=True):
    """Build the model on all ranks, its weights drawn or read from ``folder``; the phase ends before the optimizer."""
    allocate = accelerate.allocate_state

    def noted(optimizer):
        memory.note()
        allocate(optimizer)

    accelerate.allocate_state = noted
    try:
        with memory.phase(phase):
            factory = factory_of(kind, config, folder)
            if deferred:
                factory.defer_weights()
            model = factory.build(vocabulary_size=config["vocab_size"], end_of_text=0, seed=1)
            size = sum(parameter.numel() * 4 for parameter in model.parameters())
            return optimizer_of(engine)[0].prepare(model), size
    finally:
        accelerate.allocate_state = allocate


def measure(engine, config, root, group, **options):
    """Return the bytes of each phase, and those of the weights."""
    memory = Memory()
    trainable, size = prepared(engine, config, memory, "build", **options)
    store = DiskStateStore(root, Retention(3))
    checkpoints = Checkpointer(store, trainable, BlinkerEventBus(), group, Inbox())
    with memory.phase("save"):
        checkpoints.save(Progress(step=1), SaveReason.FINAL)
    with memory.phase("periodic save"):
        checkpoints.save(Progress(step=2), SaveReason.PERIODIC)
        checkpoints.flush()
    with memory.phase("restore"):
        assert checkpoints.restore_latest().step == 2
    folder = root / "checkpoints" / "checkpoint-2"
    with memory.phase("restore of the weights"):
        trainable.restore(folder, weights_only=True)
    del trainable, checkpoints
    again, _ = prepared(engine, config, memory, "build from a folder", str(folder), **options)
    del again
    return memory.found, size


def main(engine, kind="decoder", deferred="deferred"):
    torch.set_num_threads(1)
    group = TorchProcessGroup(600)
    root = group.gather(tempfile.mkdtemp(prefix="holdfast-memory-") if RANK == 0 else "")[0]
    options = {"kind": kind, "deferred": deferred == "deferred"}
    measure(engine, SMALL, Path(root) / "small", group, **options)  # libraries allocate at their first use
    found, size = measure(engine, SHAPE, Path(root) / "large", group, **options)
    every = [json.loads(text) for text in group.gather(json.dumps(found))]
    bounds = {phase: ALLOWED * size / SIZE * (COPIES if phase == "periodic save" else 1) for phase in found}
    if RANK == 0:
        sys.stdout.write("\n" + json.dumps({"weights": size, "bounds": bounds, "ranks": every}) + "\n")
        sys.stdout.flush()
    distributed.barrier()
    return 0


if __name__ == "__main__":
    end_with(lambda: main(*sys.argv[1:]))
