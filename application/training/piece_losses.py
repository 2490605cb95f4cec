"""The losses of a model on a batch, in parts that fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from holdfast.domain.errors import OutOfMemory

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from holdfast.domain.data.batch import Batch
    from holdfast.ports.optimizer import Trainable


@final
class PieceLosses:
    """Evaluates ``trainable`` on batches; after an out-of-memory error all later parts have half as many rows.

    With several ranks such an error is raised, as the others would wait. ``rows`` are those of a part at first, None
    means all of a batch.
    """

    def __init__(self, trainable: Trainable, *, num_ranks: int, rows: int | None = None) -> None:
        self._trainable = trainable
        self._num_ranks = num_ranks
        self._rows = rows

    def total(self, batch: Batch) -> float:
        """Return the summed loss of ``batch`` in nats. Raises ``OutOfMemory`` if one row is too much."""
        return self._sums(batch, by_piece=False)[0]

    def by_piece(self, batch: Batch) -> tuple[float, NDArray[np.float64]]:
        """Return the summed loss of ``batch`` and that of each piece, float64 (pieces,), in nats.

        Raises ``OutOfMemory`` if one row is too much.
        """
        return self._sums(batch, by_piece=True)

    def _sums(self, batch: Batch, *, by_piece: bool) -> tuple[float, NDArray[np.float64]]:
        rows = min(self._rows or batch.num_rows, batch.num_rows)
        while True:
            try:
                if not by_piece:
                    return sum(float(self._trainable.evaluate(part)) for part in batch.split(rows)), np.zeros(0)
                losses, pieces = zip(
                    *(self._trainable.evaluate_pieces(part) for part in batch.split(rows)), strict=True
                )
                return sum(map(float, losses)), np.concatenate(pieces)
            except OutOfMemory:
                if rows == 1 or self._num_ranks > 1:
                    raise
            self._rows = rows = (rows + 1) // 2
