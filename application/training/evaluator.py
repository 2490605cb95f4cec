"""Evaluates a model on the held-out documents."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import numpy as np

from holdfast.application.data.prefetch import Prefetch, WaitAbandoned
from holdfast.domain.errors import OutOfMemory
from holdfast.domain.phase import Amount, show_nothing
from holdfast.domain.training.step_outcome import Evaluation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.holdout_batches import HoldoutBatches
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.process_group import ProcessGroup


@final
class Evaluator:
    """Sums the loss over the held-out documents, in all and for each source, and over the named ``sets``.

    If the settings hold out no document, the total is that of all sets together. ``token_bytes``, int32 (ids,), has
    each token's number of bytes, for bits per byte. The ranks of ``group`` share the batches and run the model equally
    often. ``show`` gets the progress.
    """

    def __init__(
        self,
        trainable: Trainable,
        held_out: HoldoutBatches,
        token_bytes: NDArray[np.int32],
        group: ProcessGroup,
        *,
        sets: Mapping[str, HoldoutBatches] = MappingProxyType({}),
        show: ShowPhase = show_nothing,
    ) -> None:
        self._trainable = trainable
        self._held_out = held_out
        self._token_bytes = token_bytes
        self._group = group
        self._sets = sets
        self._show = show
        self._rows: int | None = None

    @property
    def has_documents(self) -> bool:
        """Return whether the settings name any documents to evaluate on."""
        return bool(self._sets) or not self._held_out.is_empty

    @property
    def measured(self) -> Sequence[HoldoutBatches]:
        """Return the documents whose loss is the total of an evaluation: the held-out ones, or else all sets."""
        return tuple(self._sets.values()) if self._held_out.is_empty else (self._held_out,)

    def run(self, *, should_stop: Callable[[], bool] = lambda: False) -> Evaluation | None:
        """Return the figures, or None if ``should_stop`` returned true while reading or between two batches."""
        try:
            return self._measure_all(should_stop)
        finally:
            self._show("")

    def _measure_all(self, should_stop: Callable[[], bool]) -> Evaluation | None:
        total = Evaluation(0.0, 0, 0)
        if not (self._held_out.is_empty and self._sets):
            measured = self._measure(self._held_out, "", should_stop)
            if measured is None:
                return None
            total = measured
        sets: dict[str, Evaluation] = {}
        for name, documents in self._sets.items():
            if (figures := self._measure(documents, f" {name}", should_stop)) is None:
                return None
            sets[name] = figures
        if total.num_targets:
            return Evaluation(total.nats, total.num_targets, total.num_bytes, {**total.parts, **sets})
        nats = math.fsum(each.nats for each in sets.values())
        num_targets, num_bytes = (sum(column) for column in zip(*map(_counts, sets.values()), strict=True))
        return Evaluation(nats, num_targets, num_bytes, sets)

    def _measure(self, documents: HoldoutBatches, name: str, should_stop: Callable[[], bool]) -> Evaluation | None:
        self._show(f"reading the held-out documents{name and f' of{name}'}")
        totals = np.zeros((1 + len(documents.sources), 3))  # nats, targets and bytes: of all, then of each source
        batches, size = self._batches(documents, should_stop), self._group.size
        done, total = 0, sum(batch.num_targets for batch in batches)
        for begin in range(0, max(1, len(batches)), size):
            if any(self._group.sum([not batches or should_stop()])):
                return None
            self._show(f"evaluating{name}", Amount(done, total, "tokens"))
            number = begin + self._group.rank
            batch = batches[min(number, len(batches) - 1)]
            loss, of_pieces = self._nats(batch, has_parts=bool(documents.sources))
            if number < len(batches):  # else the result is dropped: a sharded model runs on all ranks or none
                num_bytes = self._token_bytes[batch.input_ids] * batch.loss_mask
                totals[0] += (loss, batch.num_targets, num_bytes.sum())
                if documents.sources:
                    figures = (of_pieces, batch.sum_by_piece(batch.loss_mask * 1), batch.sum_by_piece(num_bytes))
                    _add_by_source(totals[1:], documents.piece_sources[number], figures)
            done += sum(each.num_targets for each in batches[begin : begin + size])
        all_ranks = self._group.sum(totals.ravel().tolist())
        whole, *parts = (_figures(all_ranks[first : first + 3]) for first in range(0, totals.size, 3))
        by_source = zip(documents.sources, parts, strict=True)
        found = {source: figures for source, figures in by_source if figures.num_targets}
        return Evaluation(whole.nats, max(1, whole.num_targets), max(1, whole.num_bytes), found)

    def _batches(self, documents: HoldoutBatches, should_stop: Callable[[], bool]) -> Sequence[Batch]:
        """Return the batches of ``documents``, none if ``should_stop``; a thread reads them the first time."""
        reading = Prefetch((documents.batches for _ in range(1)), depth=1)
        try:
            return reading.next_unless(should_stop)
        except WaitAbandoned:
            return ()
        finally:
            reading.close()

    def _nats(self, batch: Batch, *, has_parts: bool) -> tuple[float, NDArray[np.float64]]:
        """Return the summed loss of ``batch``, and with ``has_parts`` that of each piece, float64 (pieces,)."""
        rows = min(self._rows or batch.num_rows, batch.num_rows)
        while True:
            try:
                if not has_parts:
                    return sum(float(self._trainable.evaluate(part)) for part in batch.split(rows)), np.zeros(0)
                losses, pieces = zip(
                    *(self._trainable.evaluate_pieces(part) for part in batch.split(rows)), strict=True
                )
                return sum(map(float, losses)), np.concatenate(pieces)
            except OutOfMemory:
                if rows == 1 or self._group.size > 1:
                    raise
            self._rows = rows = (rows + 1) // 2


def _add_by_source(totals: NDArray[np.float64], sources: NDArray[np.int64], figures: Sequence[NDArray[Any]]) -> None:
    """Add ``figures`` of pieces, each (pieces,), to the row of ``totals`` (sources, figures) of the piece's source."""
    known = sources >= 0
    for column, values in enumerate(figures):
        totals[:, column] += np.bincount(sources[known], values[known], minlength=len(totals))


def _figures(sums: Sequence[float]) -> Evaluation:
    return Evaluation(sums[0], int(sums[1]), max(1, int(sums[2])) if sums[1] else 0)


def _counts(figures: Evaluation) -> tuple[int, int]:
    return figures.num_targets, figures.num_bytes
