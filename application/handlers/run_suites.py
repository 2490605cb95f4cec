"""Evaluates checkpoints by benchmark suites in another process, while training continues."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, final

from holdfast.application.handlers.record_events import until
from holdfast.domain.commands import SaveReason
from holdfast.domain.events import SuiteEvaluated, SuiteFailed
from holdfast.domain.phase import show_nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.application.handlers.record_events import Records
    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import (
        CheckpointSaved,
        DataEnded,
        Event,
        RolledBack,
        RunFailed,
        RunFinished,
        RunStarted,
        StepCompleted,
        StopRequested,
    )
    from holdfast.domain.phase import ShowPhase
    from holdfast.ports.process_group import ProcessGroup

_LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """The ``results`` of a process, metrics by task, or the ``problem`` that prevented them."""

    results: Mapping[str, Mapping[str, float]]
    seconds: float
    problem: str | None = None


class SuiteProcess(Protocol):
    """A process that evaluates one checkpoint at a time, and the checkpoints that are kept for it.

    A kept checkpoint is not deleted, and is kept for the next start of the run if this one is killed.
    """

    @property
    def obstacle(self) -> str | None:
        """Return the reason why no evaluation can be made in this environment, None if it can."""
        ...

    def kept(self) -> Sequence[int]:
        """Return the steps of the kept checkpoints in ascending order."""
        ...

    def keep(self, step: int) -> None:
        """Keep the checkpoint of ``step``; raises ``StateError`` if it cannot be kept."""
        ...

    def release(self, step: int) -> None:
        """Keep the checkpoint of ``step`` no longer; nothing happens if it was not kept."""
        ...

    def start(self, step: int) -> None:
        """Start the evaluation of the checkpoint of ``step``; returns at once."""
        ...

    @property
    def share(self) -> float | None:
        """Return the share of the evaluation that is done, None if it is unknown."""
        ...

    def outcome(self) -> SuiteOutcome | None:
        """Return the outcome of the evaluation once it has ended, None before."""
        ...

    def stop(self) -> None:
        """End the process, if there is one; its outcome is lost."""
        ...


@final
class RunSuites:
    """Evaluates the first checkpoint at or after each multiple of ``every`` steps, and the last one of the run.

    With ``every`` 0 only the last one is evaluated. One process runs at a time; a newer checkpoint replaces one that
    waits. The outcome is published, and results are added to ``records``. A failure is reported once and not repeated.
    A checkpoint whose evaluation a stop, a failure or a kill of the run interrupts is evaluated again at the next
    start. At the end of a run that was not stopped, the handler waits for the last evaluation, and ``show`` gets the
    progress; a stop ends the wait. The other ranks of ``group`` wait with ``wait_for_suites``.
    """

    def __init__(
        self,
        process: SuiteProcess,
        every: int,
        records: Records,
        inbox: Inbox,
        group: ProcessGroup,
        publish: Callable[[Event], object],
        *,
        show: ShowPhase = show_nothing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._process = process
        self._every = every
        self._records = records
        self._inbox = inbox
        self._group = group
        self._publish = publish
        self._show = show
        self._clock = clock
        self._running: int | None = None
        self._waiting: int | None = None
        self._newest = 0
        self._saved = 0
        self._waits_since: float | None = None
        self._is_at_end = False
        self._is_stopped = False
        self._is_off = False

    def on_start(self, event: RunStarted | RolledBack) -> None:
        """Forget later steps, and evaluate the kept checkpoints that are left."""
        step = event.progress.step
        self._records.cut(until(step))
        self._waiting = None
        if self._running is not None and self._running > step:
            self._process.stop()
            self._running = None
        self._newest = step
        if not self._is_off and (obstacle := self._process.obstacle) is not None:
            self._is_off = True
            self._publish(SuiteFailed(step, obstacle))
        for kept in self._process.kept():
            if kept > step or step == 0:
                self._process.release(kept)
            else:
                self._request(kept)

    def on_saved(self, event: CheckpointSaved) -> None:
        """Evaluate the checkpoint if it is due."""
        self._saved = step = event.progress.step
        is_last = event.reason == SaveReason.FINAL and not self._is_stopped
        is_due = bool(self._every) and step // self._every > self._newest // self._every
        if event.reason != SaveReason.EXCEPTION and (is_last or is_due):
            self._evaluate(step)

    def on_step(self, _: StepCompleted) -> None:
        """Publish an outcome that has arrived."""
        self._look()

    def on_data_end(self, _: DataEnded) -> None:
        """Take the stop that follows for the end of the run."""
        self._is_at_end = True

    def on_stop(self, event: StopRequested) -> None:
        """Leave evaluations that have not ended to the next start, unless early stopping or the data end the run."""
        self._is_at_end = self._is_at_end or event.is_early
        self._is_stopped = not self._is_at_end

    def on_end(self, _: RunFinished) -> None:
        """Wait for the last evaluation, unless the run was stopped."""
        self._waits_since = self._clock()
        try:
            if self._saved > self._newest and not self._is_interrupted:
                self._evaluate(self._saved)  # the last checkpoint was a periodic one
            while self._running is not None and not self._is_interrupted:
                self._show(f"evaluating checkpoint {self._running} by suites", self._process.share)
                self._look()
                self._group.sum([1])
                time.sleep(_LOOK_SECONDS if self._running is not None else 0.0)
        finally:
            self._group.sum([0])
            self._process.stop()
            self._show("")

    def on_failure(self, _: RunFailed) -> None:
        """End the process."""
        self._process.stop()

    @property
    def _is_interrupted(self) -> bool:
        """Return whether the run was asked to stop; its own request at its end does not count."""
        has_signal = self._inbox.seconds_since_signal is not None
        return self._is_stopped or has_signal or (not self._is_at_end and self._inbox.stop_requested)

    def _evaluate(self, step: int) -> None:
        self._newest = step
        if not self._is_off:
            self._process.keep(step)
            self._request(step)

    def _request(self, step: int) -> None:
        if self._is_off or self._is_stopped or step in (self._running, self._waiting):
            return
        if self._running is None:
            self._running = step
            self._process.start(step)
            return
        if self._waiting is not None:
            self._process.release(self._waiting)
        self._waiting = step

    def _look(self) -> None:
        if self._running is None or (outcome := self._process.outcome()) is None:
            return
        step, self._running = self._running, None
        if (waiting := self._waiting) is not None:
            self._waiting = None
            self._request(waiting)
        try:
            self._process.release(step)
        finally:
            self._tell(step, outcome)

    def _tell(self, step: int, outcome: SuiteOutcome) -> None:
        """Publish the outcome, and record results; raises ``StateError`` if the disk refuses them."""
        stall = 0.0
        if self._waits_since is not None:
            now = self._clock()
            stall, self._waits_since = now - self._waits_since, now
        if outcome.problem is not None:
            self._publish(SuiteFailed(step, outcome.problem, stall))
            return
        self._publish(SuiteEvaluated(step, outcome.results, outcome.seconds, stall))
        record = {"step": step, "time": datetime.now(UTC).isoformat(), "seconds": outcome.seconds}
        self._records.append({**record, "results": outcome.results})


def wait_for_suites(group: ProcessGroup) -> None:
    """Wait, on another rank than the first, until the first rank of ``group`` has no evaluation to wait for."""
    while any(group.sum([0])):
        pass
