"""Packed rows as padded arrays, from which batches are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from holdfast.domain.data.batch import Batch
from holdfast.domain.data.loss_mask import join_masks
from holdfast.domain.data.row_pieces import Pieces, copy_pieces

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from holdfast.domain.data.cursor import Cursor
    from holdfast.domain.data.row_index import RowIndex

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
    return Batch(input_ids, starts, row_lengths, cursor, _supervised(parts, places, shape))


def _supervised(
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
