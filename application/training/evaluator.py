"""Evaluates a model on the held-out documents."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, final

import numpy as np

from holdfast.application.data.prefetch import Prefetch, WaitAbandoned
from holdfast.application.data.tokenizer_difference import uncounted_text
from holdfast.domain.errors import DataError, OutOfMemory
from holdfast.domain.phase import Amount, show_nothing
from holdfast.domain.sizes import counted
from holdfast.domain.training.preference_loss import mean_rewards, pair_figures
from holdfast.domain.training.step_outcome import Evaluation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.holdout_batches import HoldoutBatches
    from holdfast.application.training.step_engine import DataRanks
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.data.supervision import Supervision
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.preference_loss import PreferenceRule
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.tokenizer import Tokenizer

_COLUMNS = 6


@final
class Evaluator:
    """Sums the loss over the held-out documents, in all and for each source, and over the named ``sets``.

    If the settings hold out no document, the total is that of all sets together. Bits per byte of documents whose texts
    are not known count what the tokens of ``tokenizer`` hold. The ranks of ``group`` share the batches and run the
    model equally often. ``rule``, if given, is the loss of preferences, which are measured by pairs in place of tokens.
    ``show`` gets the progress, ``report`` once a sentence on each set of which all or some rows have no target, and on
    a tokenizer whose tokens do not hold the text; ``notes`` keeps them.
    """

    def __init__(
        self,
        trainable: Trainable,
        held_out: HoldoutBatches,
        tokenizer: Tokenizer,
        group: ProcessGroup | DataRanks,
        *,
        sets: Mapping[str, HoldoutBatches] = MappingProxyType({}),
        rule: PreferenceRule | None = None,
        show: ShowPhase = show_nothing,
        report: Callable[[str], object] = lambda _: None,
    ) -> None:
        self._held_out = held_out
        self._tokenizer = tokenizer
        self._group = group
        self._sets = sets
        self._show = show
        self._report = report
        self.notes: dict[str | None, str] = {}
        self._rule = rule
        self._losses = PieceLosses(trainable, num_ranks=group.size)

    @property
    def has_documents(self) -> bool:
        """Return whether the settings name any documents to evaluate on."""
        return bool(self._sets) or not self._held_out.is_empty

    @property
    def measured(self) -> Sequence[HoldoutBatches]:
        """Return the documents whose loss is the total of an evaluation: the held-out ones, or else all sets."""
        return tuple(self._sets.values()) if self._held_out.is_empty else (self._held_out,)

    def run(
        self,
        *,
        should_stop: Callable[[], bool] = lambda: False,
        refuse_empty: bool = False,
        progressed: Callable[[str, int, int], object] = lambda _name, _done, _total: None,
    ) -> Evaluation | None:
        """Return the figures; a set without any target has none, and is not among the parts.

        ``progressed`` gets the name of a set, and how many of its targets were measured. Return None if the total has
        no target, or if ``should_stop`` returned true while reading or between two batches. Raises ``DataError`` for a
        set without any target if ``refuse_empty``.
        """
        try:
            return self._measure_all(should_stop, progressed, refuse_empty=refuse_empty)
        finally:
            self._show("")

    def _measure_all(
        self, should_stop: Callable[[], bool], progressed: Callable[[str, int, int], object], *, refuse_empty: bool
    ) -> Evaluation | None:
        evaluations: dict[str, Evaluation] = {}
        for name, documents in self._named.items():
            figures = self._measure(documents, name, should_stop, progressed)
            if figures is None:
                return None
            self._tell(name, documents.supervision, refuse_empty=refuse_empty)
            if figures.num_targets:
                evaluations[name] = figures
        without = tuple(name for name in self._named if name not in evaluations)
        if "" in self._named:
            total = evaluations.pop("", None)
            return total and replace(total, parts={**total.parts, **evaluations}, without_targets=without)
        if not evaluations:
            return None
        nats = math.fsum(each.nats for each in evaluations.values())
        num_targets, num_bytes = (sum(column) for column in zip(*map(_counts, evaluations.values()), strict=True))
        return Evaluation(nats, num_targets, num_bytes, evaluations, without_targets=without)

    @property
    def _named(self) -> Mapping[str, HoldoutBatches]:
        """Return the sets to measure by name, with the held-out documents under the empty one."""
        return self._sets if self._held_out.is_empty and self._sets else {"": self._held_out, **self._sets}

    def _tell(self, name: str, found: Supervision, *, refuse_empty: bool) -> None:
        """Report once how many rows of the set ``name`` have no target; raise ``DataError`` if none of them has one."""
        if name in self.notes:
            return
        note, whose = "", f"{counted(found.rows, 'row')} {f'of evaluation.sets.{name}' if name else 'held out'}"
        if not found.supervised:
            note = (
                f"none of the {whose} holds a token that the model is to predict, so there is no loss to measure: "
                "choose other documents to evaluate on, or raise data.sequence_length if it cuts their replies off"
            )
            if refuse_empty:
                raise DataError(note)
        elif found.supervised < found.tokens - found.pieces and found.rows_without_target:
            note = (
                f"{found.rows_without_target:,} of the {whose} hold no token that the model is to predict: "
                "they count for nothing in evaluations"
            )
        self.notes[name] = note
        if note:
            self._report(f"warning: {note}")

    def _held_bytes(self, batch: Batch) -> NDArray[np.int32]:
        """Return the bytes that each token of ``batch`` holds; report once if those of a text are not the text's."""
        if None not in self.notes:
            self.notes[None] = uncounted_text(self._tokenizer) or ""
            if self.notes[None]:
                self._report(self.notes[None])
        num_bytes: NDArray[np.int32] = self._tokenizer.token_bytes[batch.input_ids]
        return num_bytes

    def _measure(
        self,
        documents: HoldoutBatches,
        name: str,
        should_stop: Callable[[], bool],
        progressed: Callable[[str, int, int], object],
    ) -> Evaluation | None:
        self._show(f"reading the held-out documents{name and f' of {name}'}")
        totals = np.zeros((1 + len(documents.sources), _COLUMNS))  # of all, then of each source
        batches, size = self._batches(documents, should_stop), self._group.size
        done, total = 0, sum(batch.num_targets for batch in batches)
        for begin in range(0, max(1, len(batches)), size):
            if any(self._group.sum([not batches or should_stop()])):
                return None
            self._show(f"evaluating{name and f' {name}'}", Amount(done, total, "tokens"))
            progressed(name, done, total)
            number = begin + self._group.rank
            batch = batches[min(number, len(batches) - 1)]
            sizes = documents.text_bytes[min(number, len(batches) - 1)]
            of_batch, of_pieces = self._columns(batch, sizes, by_piece=bool(documents.sources))
            if number < len(batches):  # else the result is dropped: a sharded model runs on all ranks or none
                totals[0] += of_batch
                if documents.sources:
                    _add_by_source(totals[1:], documents.piece_sources[number], of_pieces)
            done += sum(each.num_targets for each in batches[begin : begin + size])
        all_ranks = np.reshape(self._group.sum(totals.ravel().tolist()), totals.shape)
        whole, *parts = (_evaluation(sums, of_pairs=self._rule is not None) for sums in all_ranks)
        by_source = zip(documents.sources, parts, strict=True)
        return replace(whole, parts={source: figures for source, figures in by_source if figures.num_targets})

    def _columns(
        self, batch: Batch, text_bytes: NDArray[np.int64] | None, *, by_piece: bool
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the figures of ``batch``, float64 (columns,), and with ``by_piece`` of each piece (columns, pieces).

        The columns are the loss, the terms of its mean, and the bytes of text; of preferences, then the rewards of the
        chosen and the rejected replies, and the pairs whose chosen one is higher. A pair counts at its first piece.
        """
        columns = np.zeros((_COLUMNS, len(batch.starts)))
        if self._rule is not None:
            if batch.reference is None:
                msg = (
                    "preferences are measured against the reference model of a run, which has read the data of the run "
                    "only: leave other data out"
                )
                raise DataError(msg)
            loss, *rewards = pair_figures(self._rule, -self._losses.by_piece(batch)[1], batch.reference)
            columns[:, 0::2] = [loss, np.ones(len(loss)), np.zeros(len(loss)), *rewards]
            return columns.sum(1), columns
        num_bytes = (self._held_bytes(batch) if text_bytes is None else text_bytes) * batch.loss_mask
        total, nats = self._losses.by_piece(batch) if by_piece else (self._losses.total(batch), np.zeros(0))
        if by_piece:
            columns[:3] = nats, batch.sum_by_piece(batch.loss_mask * 1), batch.sum_by_piece(num_bytes)
        return np.array([total, batch.num_targets, num_bytes.sum(), 0, 0, 0]), columns

    def _batches(self, documents: HoldoutBatches, should_stop: Callable[[], bool]) -> Sequence[Batch]:
        """Return the batches of ``documents``, none if ``should_stop``; a thread reads them the first time."""
        reading = Prefetch((documents.batches for _ in range(1)), depth=1)
        try:
            return reading.next_unless(should_stop)
        except WaitAbandoned:
            return ()
        finally:
            reading.close(is_urgent=should_stop())


def _add_by_source(totals: NDArray[np.float64], sources: NDArray[np.int64], columns: NDArray[np.float64]) -> None:
    """Add ``columns`` (columns, pieces) to the rows of ``totals`` (sources, columns) of the pieces' sources."""
    known = sources >= 0
    for column, values in enumerate(columns):
        totals[:, column] += np.bincount(sources[known], values[known], minlength=len(totals))


def _evaluation(sums: NDArray[np.float64], *, of_pairs: bool) -> Evaluation:
    nats, num_terms, num_bytes, *rewards = sums.tolist()
    if of_pairs:
        return Evaluation(nats, int(num_terms), 0, figures=mean_rewards(rewards, max(1, int(num_terms))))
    return Evaluation(nats, int(num_terms), int(num_bytes))


def _counts(figures: Evaluation) -> tuple[int, int]:
    return figures.num_targets, figures.num_bytes


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
