"""Evaluates a model on the held-out documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from holdfast.application.data.prefetch import Prefetch, WaitAbandoned
from holdfast.domain.errors import OutOfMemory
from holdfast.domain.phase import show_nothing
from holdfast.domain.training.step_outcome import Evaluation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.application.data.holdout_batches import HoldoutBatches
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.process_group import ProcessGroup


@final
class Evaluator:
    """Sums the loss over the held-out documents.

    ``token_bytes``, int32 (ids,), has each token's number of bytes, for bits per byte. The ranks of ``group`` share the
    batches and run the model equally often. ``show`` gets the progress.
    """

    def __init__(
        self,
        trainable: Trainable,
        held_out: HoldoutBatches,
        token_bytes: NDArray[np.int32],
        group: ProcessGroup,
        *,
        show: ShowPhase = show_nothing,
    ) -> None:
        self._trainable = trainable
        self._held_out = held_out
        self._token_bytes = token_bytes
        self._group = group
        self._show = show
        self._rows: int | None = None

    def run(self, *, should_stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Return the figures, or None if ``should_stop`` returned true while reading or between two batches."""
        try:
            return self._measure(should_stop)
        finally:
            self._show("")

    def _measure(self, should_stop: Callable[[], bool]) -> Evaluation | None:
        self._show("reading the held-out documents")
        nats, num_targets, num_bytes = 0.0, 0, 0
        batches, size = self._batches(should_stop), self._group.size
        for begin in range(0, max(1, len(batches)), size):
            if any(self._group.sum([not batches or should_stop()])):
                return None
            self._show("evaluating", begin / len(batches))
            number = begin + self._group.rank
            batch = batches[min(number, len(batches) - 1)]
            loss = self._nats(batch)
            if number < len(batches):  # else the result is dropped: a sharded model runs on all ranks or none
                nats += loss
                num_targets += batch.num_targets
                num_bytes += int(self._token_bytes[batch.input_ids[batch.loss_mask]].sum())
        totals = self._group.sum((nats, num_targets, num_bytes))
        return Evaluation(totals[0], max(1, int(totals[1])), max(1, int(totals[2])))

    def _batches(self, should_stop: Callable[[], bool]) -> Sequence[Batch]:
        """Return the held-out batches, none if ``should_stop``; a thread reads them the first time."""
        reading = Prefetch((self._held_out.batches for _ in range(1)), depth=1)
        try:
            return reading.next_unless(should_stop)
        except WaitAbandoned:
            return ()
        finally:
            reading.close()

    def _nats(self, batch: Batch) -> float:
        rows = min(self._rows or batch.num_rows, batch.num_rows)
        while True:
            try:
                return sum(float(self._trainable.evaluate(part)) for part in batch.split(rows))
            except OutOfMemory:
                if rows == 1 or self._group.size > 1:
                    raise
            self._rows = rows = (rows + 1) // 2
