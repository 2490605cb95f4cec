"""The choice of layers whose activations are recomputed, for a given budget of memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import shown_size
from holdfast.domain.training.memory_estimate import estimate_memory

if TYPE_CHECKING:
    from holdfast.domain.training.memory_estimate import ModelShape, Training


@dataclass(frozen=True, slots=True)
class CheckpointBudget:
    """The bytes per rank that activations of one micro-batch may take, and the ``training`` that they belong to."""

    max_bytes: int
    training: Training


@dataclass(frozen=True, slots=True)
class CheckpointChoice:
    """The N of every:N, 0 for none, with the predicted bytes of activations with it and without recomputation."""

    every: int
    activations: float
    all_kept: float

    @property
    def policy(self) -> str:
        """Return the choice in the notation of ``model.gradient_checkpointing``."""
        return {0: "none", 1: "full"}.get(self.every, f"every:{self.every}")


def choose_checkpointing(shape: ModelShape, budget: CheckpointBudget) -> CheckpointChoice:
    """Return the policy that recomputes the fewest layers within the budget.

    Raises ``ConfigurationError`` with the smallest sufficient budget if no policy fits.
    """
    layers = shape.num_layers
    spread = {-(-layers // every): every for every in range(layers, 0, -1)}  # among equal ones the closest
    taken = {every: _activations(shape, budget.training, every) for every in (0, *spread.values())}
    for every, activations in taken.items():
        if activations <= budget.max_bytes:
            return CheckpointChoice(every, activations, taken[0])
    least = math.ceil(min(taken.values()) / 1e6)
    rows, length = budget.training.rows, budget.training.length
    msg = (
        f"model.gradient_checkpointing leaves {shown_size(budget.max_bytes)} for the activations of {rows} "
        f"rows of {length} tokens, which take {least}MB at least: set budget:{least}MB or a smaller "
        "optimizer.micro_batch"
    )
    raise ConfigurationError(msg)


def _activations(shape: ModelShape, training: Training, every: int) -> float:
    return estimate_memory(shape, replace(training, checkpoint_every=every)).activations
