"""The place where the weights of a run's model come into memory."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.adapters.model_factory.memory import MemoryModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.bootstrap.stages.build.model import build_model
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.packing import ConcatPacking
from holdfast.ports.basic import BasicModelFactory

OWN = AccelerateOptimizer(device="cpu", precision="fp32")
TOKENIZER = SimpleNamespace(vocabulary_size=8, end_of_text=7)


class NotingFactory(BasicModelFactory):
    """Builds a small model, and notes whether its weights were to be deferred."""

    defers = False

    def defer_weights(self):
        self.defers = True

    def build(self, **options):
        return MemoryModelFactory().build(**options)


def defers(*overrides, optimizer=OWN):
    factory = NotingFactory()
    settings = load_settings([], overrides, {}).settings
    build_model(factory, TOKENIZER, settings, ConcatPacking(4), optimizer, report=print)
    return factory.defers


@pytest.mark.parametrize(
    "overrides",
    [
        ["optimizer.sharding=fsdp2"],
        ["optimizer.sharding=auto"],
        ["optimizer.sharding=ddp", "distributed.mesh.tensor=2"],
        ["distributed.mesh.pipeline=2", "model.kind=decoder"],
    ],
)
def test_ranks_that_divide_a_model_place_its_weights(overrides, monkeypatch):
    """Several processes leave the weights to the optimizer if they may divide the model; one process does not."""
    assert not defers(*overrides)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert defers(*overrides)


@pytest.mark.parametrize(
    ("overrides", "optimizer"),
    [
        (["optimizer.sharding=ddp"], OWN),
        (["optimizer.kind=deepspeed"], OWN),
        (["optimizer.sharding=fsdp2", "optimizer.precision=fp8", "optimizer.device=cuda"], OWN),
        (["optimizer.sharding=fsdp2"], MemoryOptimizer()),
    ],
)
def test_other_ranks_get_a_whole_model(overrides, optimizer, monkeypatch):
    """Ranks with a whole model each, DeepSpeed, 8-bit layers and an optimizer from outside get the weights at once."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not defers(*overrides, optimizer=optimizer)
