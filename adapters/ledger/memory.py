"""A ledger that lives as long as its object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.ledger.attempts import (
    Attempt,
    changes_of,
    check_record,
    no_spans,
    rejects_from,
    spans_of_steps,
    steps_from,
    take,
    totals_of,
)
from holdfast.domain.errors import StateError
from holdfast.ports.ledger import Ledger, SourceCount, StepTaken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.data.batch import Spans
    from holdfast.ports.ledger import CheckpointRecord, Rejects, StepRecords


@dataclass(slots=True)
class _Taken:
    place: Attempt
    loss: float
    tokens: int
    spans: Spans


@dataclass(slots=True)
class _Run:
    details: Mapping[str, object]
    began: float
    ended: tuple[str, float] | None = None
    steps: dict[int, list[_Taken]] = field(default_factory=dict)
    rejects: dict[tuple[Any, ...], str] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointRecord] = field(default_factory=dict)


@final
class MemoryLedger(Ledger):
    """Records runs in memory, for tests and for hosts that read them."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    @override
    def begin_run(self, run: str, details: Mapping[str, object], time: float) -> None:
        begun = self._runs.setdefault(run, _Run(details, time))
        begun.details, begun.ended = details, None

    @override
    def end_run(self, run: str, state: str, time: float) -> None:
        self._run(run).ended = (state, time)

    @override
    def record(self, run: str, steps: StepRecords, spans: Spans) -> None:
        check_record(steps, spans)
        taken = self._run(run).steps
        known = [one.place for step in steps.step.tolist() for one in taken.get(step, [])]
        changes = changes_of(steps, known)
        for step, attempt in changes.demoted:
            _mark(taken[step][attempt], is_current=False)
        for step, attempt, index in changes.revived:
            _mark(taken[step][attempt], is_current=True)
            taken[step][attempt].loss = float(steps.loss[index])
        places, spans = spans_of_steps(steps, spans, changes.added)
        for place, (index, attempt) in enumerate(zip(changes.added.tolist(), changes.attempts.tolist(), strict=True)):
            step = int(steps.step[index])
            first, end = int(steps.first_sample[index]), int(steps.end_sample[index])
            new = Attempt(step, attempt, first, end, is_current=True)
            own = take(spans, np.flatnonzero(places == place))
            taken.setdefault(step, []).append(_Taken(new, float(steps.loss[index]), int(steps.tokens[index]), own))

    @override
    def roll_back(self, run: str, to_step: int) -> None:
        for step, attempts in self._run(run).steps.items():
            for one in attempts if step > to_step else ():
                _mark(one, is_current=False)

    @override
    def reject(self, run: str, rejects: Rejects) -> None:
        rows = zip(rejects.unit.tolist(), rejects.position.tolist(), rejects.rule, rejects.reason, strict=True)
        for unit, position, rule, reason in rows:
            self._run(run).rejects.setdefault((*rejects.units[unit], position, rule), reason)

    @override
    def checkpoint(self, run: str, saved: CheckpointRecord) -> None:
        self._run(run).checkpoints[saved.step] = saved

    @override
    def flush(self) -> None:
        pass

    @override
    def close(self) -> None:
        pass

    @override
    def steps(self, run: str) -> StepRecords:
        current = sorted(self._current(run), key=lambda one: one.place.step)
        return steps_from(
            (one.place.step, one.place.first_sample, one.place.end_sample, one.loss, one.tokens) for one in current
        )

    @override
    def documents_in(self, run: str, step: int) -> Spans:
        return next((one.spans for one in self._current(run) if one.place.step == step), no_spans())

    @override
    def steps_with(self, document: int) -> Sequence[StepTaken]:
        return sorted(
            StepTaken(name, step, one.place.attempt, one.place.is_current)
            for name, run in self._runs.items()
            for step, attempts in run.steps.items()
            for one in attempts
            if np.any(one.spans.document == np.uint64(document))
        )

    @override
    def source_counts(self, run: str, epoch: int) -> Mapping[str, SourceCount]:
        counts: dict[str, SourceCount] = {}
        for one in self._current(run):
            of = totals_of(np.zeros_like(one.spans.sample), one.spans)
            for index in np.flatnonzero(of.epoch == epoch).tolist():
                new = (int(of.samples[index]), int(of.spans[index]), int(of.tokens[index]))
                before = counts.get(source := of.sources[of.source[index]], SourceCount(0, 0, 0))
                counts[source] = SourceCount(*map(sum, zip(before, new, strict=True)))
        return counts

    @override
    def rejected(self, run: str) -> Rejects:
        return rejects_from((*key, reason) for key, reason in self._run(run).rejects.items())

    @override
    def checkpoints(self, run: str) -> Sequence[CheckpointRecord]:
        return [saved for _, saved in sorted(self._run(run).checkpoints.items())]

    def _current(self, run: str) -> list[_Taken]:
        attempts = self._runs[run].steps.values() if run in self._runs else ()
        return [one for taken in attempts for one in taken if one.place.is_current]

    def _run(self, run: str) -> _Run:
        if run not in self._runs:
            msg = f"the ledger has no run {run}: begin it first"
            raise StateError(msg)
        return self._runs[run]


def _mark(one: _Taken, *, is_current: bool) -> None:
    one.place = one.place._replace(is_current=is_current)
