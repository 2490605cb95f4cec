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

    from holdfast.domain.data.loss_mask import LossMask
    from holdfast.domain.data.token_ids import TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class RowIndex:
    """Rows as pieces of documents in a flat array of token ids.

    Row ``i`` is the pieces ``rows[i]`` to ``rows[i + 1]``, in order; piece ``p`` is ``lengths[p]`` tokens from
    ``starts[p]`` on. All int64; a piece has at least one token. A row has at least one piece,
    unless all its documents are excluded; ``NO_ROW`` has none. ``reference``, float64 (pieces,), if given, are the
    log-probabilities of the targets of each piece under a reference model.
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]
    reference: NDArray[np.float64] | None = None

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


RowPlace = tuple["TokenIds", "LossMask | None", RowIndex, int]
"""Token ids, which of them are trained on (None: all), the index of rows of them, and the number of a row in it."""

# an empty row, which fills the last batch of finite data
_NOTHING = np.zeros(0, np.int64)
NO_ROW: RowPlace = (np.zeros(0, np.uint16), None, RowIndex(_NOTHING, _NOTHING, np.zeros(2, np.int64)), 0)


def read_rows(places: Sequence[RowPlace], length: int, cursor: Cursor | None = None) -> Batch:
    """Return the rows at ``places`` as a batch, padded with 0; ids in a memory map or a file are read from there."""
    pieces = _pieces_at(places)
    input_ids = np.empty((len(places), length), np.int64)
    runs = zip(places, input_ids, pieces.runs.tolist(), pieces.lengths.tolist(), strict=True)
    for number, ((ids, _, _, _), row, begin, size) in enumerate(runs):
        if begin < 0:
            copy_pieces(row, ids, *pieces.of(number))
        elif size == length:  # most are full: two slices fewer
            row[:] = ids[begin : begin + size]
        else:
            row[:size] = ids[begin : begin + size]
            row[size:] = 0
    starts = pieces.columns + np.repeat(np.arange(0, input_ids.size, length), pieces.counts)
    supervised, reference = _supervised(places, pieces, length), _reference(places)
    return Batch(input_ids, starts, pieces.lengths, cursor or Cursor(), supervised, reference)


def _reference(places: Sequence[RowPlace]) -> NDArray[np.float64] | None:
    """Return the log-probabilities of the pieces under the reference model, float64 (pieces,); None without one."""
    found = [
        index.reference[index.rows[number] : index.rows[number + 1]]
        for _, _, index, number in places
        if index.reference is not None
    ]
    return np.concatenate(found) if found else None


def _supervised(places: Sequence[RowPlace], pieces: Pieces, length: int) -> NDArray[np.bool_] | None:
    """Return which tokens of the rows are trained on, bool (rows, length); None if no row has a mask."""
    if all(mask is None for _, mask, _, _ in places):
        return None
    supervised = np.ones((len(places), length), np.bool_)
    for number, (_, mask, _, _) in enumerate(places):
        if mask is not None:
            copy_pieces(supervised[number], mask, *pieces.of(number))
    return supervised


def _pieces_at(places: Sequence[RowPlace]) -> Pieces:
    begins, sizes = [], []
    for _, _, index, number in places:
        first, last = index.rows[number], index.rows[number + 1]  # faster than a list of both
        begins.append(index.starts[first:last])
        sizes.append(index.lengths[first:last])
    counts = np.fromiter(map(len, sizes), np.int64, len(sizes))
    return Pieces(np.concatenate(begins), np.concatenate(sizes), counts)
