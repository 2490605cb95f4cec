"""The choice of layers whose activations are recomputed, for a given budget of memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.memory_estimate import estimate_memory

if TYPE_CHECKING:
    from holdfast.domain.training.memory_estimate import ModelShape, Training


@dataclass(frozen=True, slots=True)
class CheckpointBudget:
    """``max_bytes`` for the activations of what goes through the model at once in ``training``, on each rank."""

    max_bytes: int
    training: Training


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """The N of every:N, 0 for none, and the bytes of activations that are predicted with it, and if all are kept."""

    every: int
    activations: float
    all_kept: float

    @property
    def policy(self) -> str:
        """Return the choice as ``model.gradient_checkpointing`` would name it."""
        return {0: "none", 1: "full"}.get(self.every, f"every:{self.every}")


def choose_checkpointing(shape: ModelShape, budget: CheckpointBudget) -> CheckpointChoice:
    """Return the policy that computes the fewest layers again and stays within the budget.

    Raises ``ConfigurationError`` with the smallest budget that would do if none does.
    """
    layers = shape.num_layers
    spread = {-(-layers // every): every for every in range(layers, 0, -1)}  # of those alike the closest
    taken = {every: _activations(shape, budget.training, every) for every in (0, *spread.values())}
    for every, activations in taken.items():
        if activations <= budget.max_bytes:
            return CheckpointChoice(every, activations, taken[0])
    least = math.ceil(min(taken.values()) / (1 << 20))
    rows, length = budget.training.rows, budget.training.length
    msg = (
        f"model.gradient_checkpointing leaves {budget.max_bytes / (1 << 20):.0f}MiB for the activations of {rows} "
        f"rows of {length} tokens, which take {least}MiB at least: set budget:{least}MiB or a smaller "
        "optimizer.micro_batch"
    )
    raise ConfigurationError(msg)


def _activations(shape: ModelShape, training: Training, every: int) -> float:
    return estimate_memory(shape, replace(training, checkpoint_every=every)).activations
