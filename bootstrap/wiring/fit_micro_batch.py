"""Finds the micro-batch for ``optimizer.micro_batch=auto`` by the memory formula or by trial."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from holdfast.application.resources.micro_batch_search import try_sizes
from holdfast.bootstrap.wiring.lazy import lazy
from holdfast.bootstrap.wiring.settings_estimate import layers_between, training_of
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import shown_size
from holdfast.domain.training.memory_estimate import estimate_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.adapters.shared.device.memory_gauge import GpuGauge, HostGauge
    from holdfast.bootstrap.wiring.run_parts import ModelParts
    from holdfast.domain.training.memory_estimate import MemoryEstimate

_SMALL = 0.1  # of the free memory: below it no trial is needed


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """The rows of a micro-batch, and the reason."""

    rows: int
    reason: str


def choose_size(parts: ModelParts, sizes: Sequence[int], *, is_compiled: bool) -> SizeChoice:
    """Return the largest of ``sizes`` (ascending) that this process has memory for.

    If the formula says that all rows take at most a tenth of the free memory, the largest size is chosen. Otherwise
    sizes are tried. The formula alone decides where a trial would leave traces (DeepSpeed), compile for sizes that are
    not kept, or make other ranks wait.
    """
    settings, device = parts.settings, parts.hardware.get("optimizer.device")
    if device != "cuda" and parts.trainable.hardware.device != "cpu":
        return SizeChoice(sizes[-1], "all rows: the memory that they take is not known here")
    gauge: GpuGauge | HostGauge = lazy("holdfast.adapters.shared.device.memory_gauge:gauge_of")(
        device, settings.resources.gpu_memory_fraction
    )
    room = gauge.most() - gauge.held()
    needs = _formula(parts)
    if needs is not None and needs(sizes[-1]) <= _SMALL * room:
        return SizeChoice(
            sizes[-1], f"all rows: the formula takes {shown_size(needs(sizes[-1]))} of {shown_size(room)}"
        )
    if not parts.trainable.is_retry_safe or parts.process_group.size > 1 or is_compiled:
        return _by_formula(sizes, needs, room)
    peaks = try_sizes(parts.trainable, sizes, settings.data.row_length, gauge)
    rows = max(peaks)
    return SizeChoice(rows, f"by trial: a peak of {shown_size(peaks[rows])} of {shown_size(gauge.most())}")


def _by_formula(sizes: Sequence[int], needs: Callable[[int], float] | None, room: float) -> SizeChoice:
    if needs is None:
        return SizeChoice(sizes[-1], "all rows: no formula knows this model, and a trial would leave traces")
    rows = max((size for size in sizes if needs(size) <= room), default=sizes[0])
    return SizeChoice(rows, f"by the formula of docs/memory.md: {shown_size(needs(rows))} of {shown_size(room)}")


def memory_of(parts: ModelParts, rows: int, *, accumulates: bool) -> MemoryEstimate | None:
    """Return the memory of training with micro-batches of ``rows``, by the formula; None for an unknown model.

    ``accumulates`` says that an update has several micro-batches. A budget for activations counts as none.
    """
    every = layers_between(parts.settings.model.gradient_checkpointing)
    formula = _estimates(parts, accumulates=accumulates, checkpoint_every=every)
    return None if formula is None else formula(rows)


def _formula(parts: ModelParts) -> Callable[[int], float] | None:
    """Return a function from a number of rows to their bytes, without weights and optimizer; None if unknown."""
    formula = _estimates(parts, accumulates=True)
    if formula is None:
        return None
    keeps_buffers = parts.settings.optimizer.kind == "deepspeed"

    def needs(rows: int) -> float:
        estimate = formula(rows)
        there = estimate.weights + estimate.optimizer + (estimate.buffers if keeps_buffers else 0)
        return estimate.peak - there

    return needs


def _estimates(
    parts: ModelParts, *, accumulates: bool, checkpoint_every: int = 0
) -> Callable[[int], MemoryEstimate] | None:
    """Return a function from a number of rows to the memory of training; None if the model is unknown."""
    settings, model = parts.settings, parts.model
    try:
        shape = lazy("holdfast.adapters.shared.modeling.activation_checkpointing:shape_of")(model.network)
    except (ConfigurationError, AttributeError):
        return None

    def estimate(rows: int) -> MemoryEstimate:
        training = training_of(settings, parts.hardware, parts.process_group.size, rows)
        training = replace(training, checkpoint_every=checkpoint_every, accumulates=accumulates)
        return estimate_memory(shape, training)

    return estimate
