"""Packed rows of tokens, the unit of work of one optimizer step."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from domain.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of packed documents; the model predicts each token from those before it in the same document.

    All arrays are (rows, length): ``input_ids`` int64; ``position_ids`` int64, restarting with each document;
    ``document_ids`` int32, counting from 0 in each row, -1 on padding; ``loss_mask`` bool, true where the token is a
    target (never the first of a document's piece in a row, never padding).
    ``cursor`` is where the *next* batch starts: it travels with the batch, so prefetching cannot make a resume lie.
    """

    input_ids: NDArray[np.int64]
    position_ids: NDArray[np.int64]
    document_ids: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    cursor: Cursor = field(default_factory=Cursor)

    @property
    def num_rows(self) -> int:
        """Return how many sequences the batch holds."""
        return int(self.input_ids.shape[0])

    @cached_property
    def num_tokens(self) -> int:
        """Return how many tokens the model reads, padding left out."""
        return int(np.count_nonzero(self.document_ids >= 0))

    @cached_property
    def num_targets(self) -> int:
        """Return how many tokens the model predicts: the weight of the batch in a loss."""
        return int(np.count_nonzero(self.loss_mask))

    def split(self, rows: int) -> Iterator[Batch]:
        """Yield the batch in order as micro-batches of at most ``rows`` rows."""
        for start in range(0, self.num_rows, rows):
            yield self.select(slice(start, start + rows), self.cursor)

    def select(self, rows: slice | NDArray[np.int64], cursor: Cursor) -> Batch:
        """Return the chosen ``rows`` as a batch that ends at ``cursor``."""
        return Batch(
            self.input_ids[rows], self.position_ids[rows], self.document_ids[rows], self.loss_mask[rows], cursor
        )
