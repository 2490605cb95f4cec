"""The part of a flattened tensor that a rank has: a block of rows, or of columns of a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

_MOST_RUNS = 1 << 26  # a damaged file may claim any number


class TensorBlock(NamedTuple):
    """``repeats`` runs of ``length`` elements, the first at ``start``, each ``stride`` elements after the one before.

    A block of rows is one run; a block of columns of a matrix is a run in each of its rows.
    """

    start: int
    length: int
    stride: int = 0
    repeats: int = 1

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return self.length * self.repeats

    def runs(self) -> NDArray[np.int64]:
        """Return the start and the count of each run, int64 (repeats, 2)."""
        starts = self.start + np.arange(self.repeats, dtype=np.int64) * self.stride
        return np.stack([starts, np.full_like(starts, self.length)], axis=1)


def cover(places: Iterable[TensorBlock], size: int) -> bool:
    """Return whether ``places`` together have each of ``size`` elements exactly once."""
    places = list(places)
    if sum(place.size for place in places) != size or sum(place.repeats for place in places) > _MOST_RUNS:
        return False
    runs = np.concatenate([np.zeros((1, 2), np.int64), *(place.runs() for place in places if place.size)])
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    ends = runs.sum(axis=1)
    return bool(ends[-1] == size and (runs[1:, 0] == ends[:-1]).all())
