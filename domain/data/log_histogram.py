"""A histogram of whole numbers in buckets of a fixed relative width."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, final

import numpy as np

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

_BITS = 5  # of a value's leading bits that name its bucket
_PER_OCTAVE = 1 << _BITS

RELATIVE_ERROR = 0.5 / _PER_OCTAVE
"""The largest error of a quantile, relative to its value: half the width of a bucket, about 1.6 %."""


@final
class LogHistogram:
    """Counts of whole numbers in buckets whose bounds grow geometrically, as in DDSketch (arXiv 1908.10693).

    Values below 64 have a bucket each. Each power of two above is divided into 32 buckets of equal width, as in
    HdrHistogram, so that a value differs from the middle of its bucket by at most ``RELATIVE_ERROR``. The bucket of a
    value follows from its bits alone, so the counts are equal on each machine. ``counts`` is int64 (buckets,), without
    zeros at its end. Two histograms merge exactly, in any order.
    """

    def __init__(self, counts: NDArray[np.int64] | None = None) -> None:
        counts = np.zeros(0, np.int64) if counts is None else counts
        self.counts = counts[: int(np.flatnonzero(counts).max(initial=-1)) + 1]

    @classmethod
    def of(cls, values: NDArray[np.int64]) -> Self:
        """Return the histogram of ``values``, int64 (values,), each from 0 to below 2^53."""
        return cls(np.bincount(bucket_of(values)).astype(np.int64))

    def __add__(self, other: Self) -> Self:
        short, long = sorted((self.counts, other.counts), key=len)
        counts = long.copy()
        counts[: len(short)] += short
        return type(self)(counts)

    @property
    def total(self) -> int:
        """Return the number of values."""
        return int(self.counts.sum())

    def quantile(self, share: float) -> float | None:
        """Return the value below which ``share`` of the values lie, None if there are none."""
        total = self.total
        if not total:
            return None
        rank = min(int(share * total), total - 1)
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank, side="right"))
        first, end = bounds_of(bucket)
        return (first + end - 1) / 2

    def to_json(self) -> Mapping[str, Sequence[int]]:
        """Return the buckets that have values, each as the distance to the one before, and their counts."""
        filled = np.flatnonzero(self.counts)
        return {"buckets": np.diff(filled, prepend=0).tolist(), "counts": self.counts[filled].tolist()}

    @classmethod
    def from_json(cls, record: Mapping[str, Sequence[int]]) -> Self:
        """Return the histogram that ``to_json`` described. Raises ``DataError`` for any other record."""
        steps = np.array(record["buckets"], np.int64)
        counts = np.array(record["counts"], np.int64)
        filled = np.cumsum(steps)
        if len(filled) != len(counts) or (steps[1:] <= 0).any() or (counts <= 0).any() or (filled >= 53 * 32).any():
            msg = "a histogram's buckets and counts do not belong together"
            raise DataError(msg)
        dense = np.zeros(int(filled[-1]) + 1 if len(filled) else 0, np.int64)
        dense[filled] = counts
        return cls(dense)


def bucket_of(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bucket of each of ``values``, int64 (values,), each from 0 to below 2^53."""
    octave = np.maximum(np.frexp(values.astype(np.float64))[1].astype(np.int64) - _BITS - 1, 0)  # exact below 2^53
    buckets: NDArray[np.int64] = octave * _PER_OCTAVE + (values >> octave)
    return buckets


def bounds_of(bucket: int) -> tuple[int, int]:
    """Return the smallest value of ``bucket``, and the smallest value of the next one."""
    octave = max(bucket // _PER_OCTAVE - 1, 0)
    leading = bucket - octave * _PER_OCTAVE
    return leading << octave, (leading + 1) << octave
