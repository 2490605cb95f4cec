"""Measuring a model on held-out documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from domain.errors import OutOfMemory
from domain.outcome import Evaluation

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from application.held_out import HeldOut
    from domain.batch import Batch
    from ports.optimizer import Trainable


@final
class Evaluator:
    """Sums the loss over the held-out documents; ``token_bytes`` (one entry an id) turns it into bits per byte."""

    def __init__(self, trainable: Trainable, held_out: HeldOut, token_bytes: NDArray[np.int32]) -> None:
        self._trainable = trainable
        self._held_out = held_out
        self._token_bytes = token_bytes
        self._rows: int | None = None

    def run(self, *, should_stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Return the figures, or None if ``should_stop`` said so between two batches."""
        nats, num_targets, num_bytes = 0.0, 0, 0
        for batch in self._held_out.batches:
            if should_stop():
                return None
            nats += self._nats(batch)
            num_targets += batch.num_targets
            num_bytes += int(self._token_bytes[batch.input_ids[batch.loss_mask]].sum())
        return Evaluation(nats, max(1, num_targets), max(1, num_bytes))

    def _nats(self, batch: Batch) -> float:
        rows = min(self._rows or batch.num_rows, batch.num_rows)
        while True:
            try:
                return sum(float(self._trainable.evaluate(part)) for part in batch.split(rows))
            except OutOfMemory:
                if rows == 1:
                    raise
            self._rows = rows = (rows + 1) // 2
