"""Searches by trial for the largest micro-batch that fits into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from holdfast.domain.data.batch import Batch
from holdfast.domain.errors import OutOfMemory
from holdfast.domain.training.micro_batch import next_candidate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.ports.optimizer import Trainable

_FP32 = 4


class MemoryGauge(Protocol):
    """The memory available to this process, and the peak of its use since ``reset``, in bytes."""

    def reset(self) -> None:
        """Start a new measurement of the peak."""

    def peak(self) -> int:
        """Return the peak in bytes."""

    def held(self) -> int:
        """Return the bytes in use now."""

    def most(self) -> int:
        """Return the largest permitted peak in bytes."""


def try_sizes(trainable: Trainable, sizes: Sequence[int], length: int, gauge: MemoryGauge) -> Mapping[int, int]:
    """Return the peaks in bytes of the ``sizes`` (ascending) that were tried and fitted; one row is always included.

    Each size is tried with rows of the full length, in two parts, so that gradients exist during the second. No
    update is applied, so the state is unchanged. Peaks are extrapolated before a trial, so that memory does
    not run out. Raises ``OutOfMemory`` if the first trial does not fit.
    """
    most, held = gauge.most(), gauge.held()
    peaks, failed = dict[int, int](), set[int]()
    while (rows := next_candidate(sizes, peaks, failed, most)) is not None:
        gauge.reset()
        try:
            learn_nothing(trainable, full_rows(rows, length), times=2)
        except OutOfMemory:
            if not peaks:
                raise
            failed.add(rows)
            continue
        peaks[rows] = gauge.peak()
        # without a row the fp32 gradients remain; at least half of a peak counts as memory of the row
        peaks.setdefault(0, min(held + _FP32 * trainable.hardware.num_parameters, (held + peaks[rows]) // 2))
    return {rows: peak for rows, peak in peaks.items() if rows and (peak <= most or rows == sizes[0])}


def learn_nothing(trainable: Trainable, part: Batch, *, times: int) -> None:
    """Pass over ``part`` forward and backward as often as ``times`` says, and drop the gradients; collective."""
    with trainable.update(step=1, learning_rate=0.0) as update:
        losses = [update.accumulate(part, weight=1.0, last=number == times) for number in range(1, times + 1)]
        float(losses[-1])


def full_rows(rows: int, length: int) -> Batch:
    """Return a batch of as many ``rows``, each one document of ``length`` tokens."""
    return Batch(
        np.zeros((rows, length), np.int64), np.arange(0, rows * length, length), np.full(rows, length, np.int64)
    )
