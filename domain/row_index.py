"""Which tokens make up which row: what packing decides, and what reading needs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Self

import numpy as np

from domain.batch import Batch
from domain.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from domain.packing import Packed


@dataclass(frozen=True, slots=True, eq=False)
class RowIndex:
    """Rows as pieces of documents in a flat array of token ids.

    Row ``i`` is the pieces ``rows[i]`` to ``rows[i + 1]``, in order; piece ``p`` is ``lengths[p]`` tokens from
    ``starts[p]`` on. All int64; a piece has at least one token, a row at least one piece
    (``NO_ROW`` alone has none).
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows: NDArray[np.int64]

    @classmethod
    def empty(cls) -> Self:
        """Return the index of no rows."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, np.zeros(1, np.int64))

    @property
    def num_rows(self) -> int:
        """Return how many rows there are."""
        return len(self.rows) - 1

    @property
    def num_tokens(self) -> int:
        """Return how many tokens the rows hold."""
        return int(self.lengths.sum())


RowPlace = tuple["NDArray[np.unsignedinteger]", RowIndex, int]

# a row that holds nothing: what fills the last batch of finite data
NO_ROW: RowPlace = (np.zeros(0, np.uint16), RowIndex(*(np.zeros(size, np.int64) for size in (0, 0, 2))), 0)


def place_rows(
    documents: Sequence[NDArray[np.unsignedinteger]],
    packing: Callable[[NDArray[np.int64], NDArray[np.int64]], Packed],
) -> list[RowPlace]:
    """Return the rows that ``packing`` makes of ``documents``, for ``read_rows``."""
    lengths = np.array([len(document) for document in documents])
    index = packing(np.cumsum(lengths) - lengths, lengths).index
    ids = np.concatenate(documents)
    return [(ids, index, row) for row in range(index.num_rows)]


def read_rows(places: Sequence[RowPlace], length: int, cursor: Cursor | None = None) -> Batch:
    """Return the rows at ``places``, each named by token ids, their index and its number, as a batch, padded with 0.

    Ids that lie in a memory map are read from where they lie.
    """
    input_ids = np.empty((len(places), length), np.int64)
    row_lengths = np.zeros(len(places), np.int64)
    starts: list[int] = []
    for row, (ids, index, number) in enumerate(places):
        first, last = index.rows[number : number + 2].tolist()
        sizes = index.lengths[first:last].tolist()
        row_lengths[row] = copy_row(input_ids[row], ids, index.starts[first:last].tolist(), sizes)
        starts += accumulate(sizes[:-1], initial=row * length) if sizes else ()
    return Batch(input_ids, np.array(starts, np.int64), row_lengths, cursor or Cursor())


def copy_row(row: NDArray[np.integer], ids: NDArray[np.unsignedinteger], begins: list[int], sizes: list[int]) -> int:
    """Copy the pieces of ``ids`` that begin and measure so into ``row``, 0 behind them; return how many tokens."""
    column = 0
    for begin, end in _runs(begins, sizes):
        row[column : column + end - begin] = ids[begin:end]
        column += end - begin
    row[column:] = 0
    return column


def _runs(begins: list[int], sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Yield where the pieces lie, those that lie side by side as one: copied at once."""
    run, end = begins[0] if begins else 0, begins[0] if begins else 0
    for begin, size in zip(begins, sizes, strict=True):
        if begin != end:
            yield run, end
            run = begin
        end = begin + size
    if begins:
        yield run, end
