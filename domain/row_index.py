"""Which tokens make up which row: what packing decides, and what reading needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from domain.batch import Batch
from domain.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
    input_ids = np.zeros((len(places), length), np.int64)
    row_lengths = np.zeros(len(places), np.int64)
    starts: list[int] = []
    for row, (ids, index, number) in enumerate(places):
        first, last = index.rows[number : number + 2].tolist()
        column = 0
        run_start = run_end = -1
        for start, size in zip(index.starts[first:last].tolist(), index.lengths[first:last].tolist(), strict=True):
            starts.append(row * length + column)
            if start != run_end:  # pieces that lie side by side are copied at once
                if run_end > run_start:
                    input_ids[row, column - (run_end - run_start) : column] = ids[run_start:run_end]
                run_start = start
            run_end = start + size
            column += size
        input_ids[row, column - (run_end - run_start) : column] = ids[run_start:run_end]
        row_lengths[row] = column
    return Batch(input_ids, np.array(starts, np.int64), row_lengths, cursor or Cursor())
