"""The index of packed rows: the tokens that make up each row."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from holdfast.domain.data.batch import Batch
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.loss_mask import join_masks

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


_Value = TypeVar("_Value", np.unsignedinteger[Any], np.bool_)


class PieceOrigins(NamedTuple):
    """The documents that the pieces of some rows come from, one element of each array for each piece.

    ``epoch`` counts the passes over the source, ``units`` int64 are numbers of its units, ``positions`` int64 those of
    the documents in them. ``hashes`` are the documents' ids, uint64, and ``first_tokens`` int64 the first token of each
    piece in its document.
    """

    epoch: int
    units: NDArray[np.int64]
    positions: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    first_tokens: NDArray[np.int64]

    def part(self, begin: int, end: int) -> PieceOrigins:
        """Return the origins of the pieces from ``begin`` to before ``end``."""
        _, units, positions, hashes, first_tokens = self
        part = slice(begin, end)
        return PieceOrigins(self.epoch, units[part], positions[part], hashes[part], first_tokens[part])


class LaidOutRows(NamedTuple):
    """Packed rows as padded arrays.

    ``ids`` are unsigned (rows, length), with 0 after the first ``lengths`` int64 (rows,) tokens of each. ``starts``
    int64 are the columns at which pieces begin, ``counts`` int64 (rows,) of them in each row. ``origins`` are those of
    the pieces, None unless they were requested. ``supervised``, bool (rows, length), says which tokens are trained on,
    None means all of them.
    """

    ids: NDArray[np.unsignedinteger]
    lengths: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    origins: PieceOrigins | None = None
    supervised: NDArray[np.bool_] | None = None

    @property
    def num_rows(self) -> int:
        """Return the number of rows."""
        return len(self.lengths)


def lay_out(
    ids: NDArray[np.unsignedinteger],
    index: RowIndex,
    order: NDArray[np.int64],
    length: int,
    loss_mask: NDArray[np.bool_] | None = None,
) -> LaidOutRows:
    """Return the rows of ``index`` over the flat ``ids`` in this ``order`` of their numbers, ``length`` long.

    ``loss_mask``, of the shape of ``ids``, says which of them are trained on; None means all.
    """
    pieces = Pieces(*pieces_in(index, order))
    supervised = None if loss_mask is None else _rows_of(loss_mask, pieces, length)
    rows = _rows_of(ids, pieces, length)
    return LaidOutRows(rows, pieces.lengths, pieces.columns, pieces.counts, supervised=supervised)


def _rows_of(values: NDArray[_Value], pieces: Pieces, length: int) -> NDArray[_Value]:
    """Return the ``pieces`` of the flat ``values`` as rows of ``length``, filled up with 0."""
    target = np.zeros((len(pieces.counts), length), values.dtype)
    whole = (pieces.runs >= 0) & (pieces.lengths == length)
    if whole.any():
        target[whole] = sliding_window_view(values, length)[pieces.runs[whole]]
    for row in np.flatnonzero(~whole).tolist():
        copy_pieces(target[row], values, *pieces.of(row))
    return target


def join_rows(parts: Sequence[LaidOutRows], places: NDArray[np.int64], shape: tuple[int, int], cursor: Cursor) -> Batch:
    """Return a batch of ``shape`` with the rows of ``parts``, in order, at ``places``; all other rows are empty."""
    new = np.empty if len(places) == shape[0] else np.zeros
    input_ids, row_lengths = new(shape, np.int64), new(shape[0], np.int64)
    if not parts:
        return Batch(input_ids, np.zeros(0, np.int64), row_lengths, cursor)
    input_ids[places] = np.concatenate([part.ids for part in parts])
    row_lengths[places] = np.concatenate([part.lengths for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    starts = np.concatenate([part.starts for part in parts]) + np.repeat(places * shape[1], counts)
    starts.sort()
    return Batch(input_ids, starts, row_lengths, cursor, _supervised_rows(parts, places, shape))


def _supervised_rows(
    parts: Sequence[LaidOutRows], places: NDArray[np.int64], shape: tuple[int, int]
) -> NDArray[np.bool_] | None:
    """Return which tokens of a batch with the rows of ``parts`` at ``places`` are trained on; None means all."""
    joined = join_masks([part.supervised for part in parts], [part.num_rows for part in parts])
    if joined is None:
        return None
    supervised = np.ones(shape, np.bool_)
    supervised[places] = joined
    return supervised


def pieces_in(
    index: RowIndex, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the first tokens and the sizes of the pieces of the rows ``order``, and how many pieces each row has."""
    first_pieces, counts = index.rows[:-1][order], np.diff(index.rows)[order]
    places = np.repeat(first_pieces - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    return index.starts[places], index.lengths[places], counts
