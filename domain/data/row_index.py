"""The index of packed rows: the tokens that make up each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from holdfast.domain.data.batch import Batch
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.row_pieces import Pieces, copy_pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from holdfast.domain.data.token_ids import TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class RowIndex:
    """Rows as pieces of documents in a flat array of token ids.

    Row ``i`` is the pieces ``rows[i]`` to ``rows[i + 1]``, in order; piece ``p`` is ``lengths[p]`` tokens from
    ``starts[p]`` on. All int64; a piece has at least one token. A row has at least one piece,
    unless all its documents are excluded; ``NO_ROW`` has none.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]

    @classmethod
    def empty(cls) -> Self:
        """Return an index without rows."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, np.zeros(1, np.int64))

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""
        return len(self.rows) - 1

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens in all rows."""
        return int(self.lengths.sum())


RowPlace = tuple["TokenIds", RowIndex, int]

# an empty row, which fills the last batch of finite data
NO_ROW: RowPlace = (np.zeros(0, np.uint16), RowIndex(*(np.zeros(size, np.int64) for size in (0, 0, 2))), 0)


def read_rows(places: Sequence[RowPlace], length: int, cursor: Cursor | None = None) -> Batch:
    """Return the rows at ``places``, each named by token ids, their index and its number, as a batch, padded with 0.

    Ids in a memory map or a file are read from there.
    """
    pieces = _pieces_at(places)
    input_ids = np.empty((len(places), length), np.int64)
    runs = zip(places, input_ids, pieces.runs.tolist(), pieces.lengths.tolist(), strict=True)
    for number, ((ids, _, _), row, begin, size) in enumerate(runs):
        if begin < 0:
            copy_pieces(row, ids, *pieces.of(number))
        elif size == length:  # most are full: two slices fewer
            row[:] = ids[begin : begin + size]
        else:
            row[:size] = ids[begin : begin + size]
            row[size:] = 0
    starts = pieces.columns + np.repeat(np.arange(0, input_ids.size, length), pieces.counts)
    return Batch(input_ids, starts, pieces.lengths, cursor or Cursor())


def _pieces_at(places: Sequence[RowPlace]) -> Pieces:
    begins, sizes = [], []
    for _, index, number in places:
        first, last = index.rows[number], index.rows[number + 1]  # faster than a list of both
        begins.append(index.starts[first:last])
        sizes.append(index.lengths[first:last])
    counts = np.fromiter(map(len, sizes), np.int64, len(sizes))
    return Pieces(np.concatenate(begins), np.concatenate(sizes), counts)
