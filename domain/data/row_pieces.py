"""The positions of the pieces of packed rows in flat token ids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from holdfast.domain.data.loss_mask import LossMask
    from holdfast.domain.data.token_ids import TokenIds


@dataclass(frozen=True, eq=False)
class Pieces:
    """The pieces of some rows, end to end: each begins somewhere in the ids of its row and has a size.

    ``begins`` and ``sizes`` are int64 (pieces,), ``counts`` int64 (rows,) of them in each row, which may be 0.
    """

    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]
    counts: NDArray[np.int64]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each row, int64 (rows,)."""
        return np.diff(self._before[self._bounds])

    @cached_property
    def columns(self) -> NDArray[np.int64]:
        """Return the position of each piece in its row, int64 (pieces,)."""
        return self._before[:-1] - np.repeat(self._before[self._bounds[:-1]], self.counts)

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """Return the first position of each row with contiguous pieces, -1 for other rows, int64 (rows,)."""
        is_gap = np.zeros(len(self.begins) + 1, np.int64)
        is_gap[2:] = self.begins[1:] != self.begins[:-1] + self.sizes[:-1]
        gaps = np.cumsum(is_gap)  # before each piece
        first = np.minimum(self._bounds[:-1] + 1, self._bounds[1:])  # a gap between two rows is none
        firsts = np.append(self.begins, 0)[self._bounds[:-1]]
        return np.where(gaps[self._bounds[1:]] == gaps[first], firsts, -1)

    def of(self, row: int) -> tuple[list[int], list[int]]:
        """Return the first positions and the sizes of the pieces of one row, both int64 (its pieces,)."""
        first, last = self._bounds[row : row + 2]
        return self.begins[first:last].tolist(), self.sizes[first:last].tolist()

    @cached_property
    def _bounds(self) -> NDArray[np.int64]:
        return np.append(0, np.cumsum(self.counts))

    @cached_property
    def _before(self) -> NDArray[np.int64]:
        return np.append(0, np.cumsum(self.sizes))


def copy_pieces(
    row: NDArray[np.integer] | NDArray[np.bool_], values: TokenIds | LossMask, begins: list[int], sizes: list[int]
) -> None:
    """Copy the pieces of ``values`` with these ``begins`` and ``sizes`` into ``row`` (length,), and fill up with 0."""
    column = 0
    for begin, size in zip(begins, sizes, strict=True):
        row[column : column + size] = values[begin : begin + size]
        column += size
    row[column:] = 0
