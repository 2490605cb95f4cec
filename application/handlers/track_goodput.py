"""Tracks how the time of a run's current start is spent."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, final

from holdfast.domain.events import (
    BatchSplit,
    CheckpointSaved,
    CompilationStarted,
    DataStalled,
    EvaluationCompleted,
    EvaluationProgressed,
    MemoryExhausted,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
    StopRequested,
    SuiteEvaluated,
    SuiteFailed,
    TextGenerated,
)
from holdfast.domain.fault_tolerance.goodput import TimeCategory, TimeSample

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.domain.events import Event
    from holdfast.domain.fault_tolerance.goodput import TimeAccount

_WENT_INTO = {
    RunStarted: TimeCategory.START_UP,
    DataStalled: TimeCategory.DATA,
    EvaluationProgressed: TimeCategory.EVALUATION,
    EvaluationCompleted: TimeCategory.EVALUATION,
    TextGenerated: TimeCategory.EVALUATION,
    MemoryExhausted: TimeCategory.RECOVERY,
    BatchSplit: TimeCategory.RECOVERY,
    RolledBack: TimeCategory.RECOVERY,
    RunFinished: TimeCategory.SAVE,
    RunFailed: TimeCategory.SAVE,
}


@final
class TrackGoodput:
    """Records the use of the time since ``began`` (of ``clock``) in ``ledger``, and with ``write`` for later starts.

    Each event closes the time since the one before it, so that every second is counted once. A mark is made at the
    start, the end, each save and each fall of the step, else at most once a second, and ever more rarely: a kill leaves
    at most a second uncounted, or two thousandths of the start's time. The mark at the end says whether the end was
    planned: a spent budget, a file ``STOP``, a host or Ctrl-C, but no other signal, as schedulers send those.
    """

    def __init__(
        self,
        ledger: TimeAccount,
        write: Callable[[TimeSample], object],
        *,
        began: float,
        compile_seconds: Callable[[], float] = lambda: 0.0,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._ledger = ledger
        self._write = write
        self._began = self._last = self._marked = began
        self._compile_seconds = compile_seconds
        self._clock = clock
        self._origin = wall() - clock()
        self._compiled = 0.0
        self._seconds = dict.fromkeys(TimeCategory, 0.0)
        self._step: int | None = None
        self._known_wait = 0.0
        self._is_preempted = False

    def __call__(self, event: Event) -> None:
        """Count the time up to ``event``."""
        if isinstance(event, CompilationStarted):
            return  # the end of its step counts the parts of the step
        now = self._clock()
        elapsed, self._last = now - self._last, now
        match event:
            case StepCompleted(_, outcome):
                self._count_step(elapsed, outcome.supply.wait_seconds)
            case CheckpointSaved():
                self._count_stall(elapsed, event.stall_seconds, TimeCategory.SAVE)
            case SuiteEvaluated() | SuiteFailed() if self._step is not None:
                self._count_stall(elapsed, event.stall_seconds, TimeCategory.EVALUATION)
            case _:
                known = _WENT_INTO.get(
                    type(event), TimeCategory.START_UP if self._step is None else TimeCategory.COMPUTE
                )
                self._count(known, elapsed)
        if isinstance(event, RunStarted):
            self._compiled = self._compile_seconds()  # before the loop, so within the start-up that was just counted
        if isinstance(event, DataStalled):
            self._known_wait = event.seconds
        elif isinstance(event, StopRequested):
            self._is_preempted = event.signal not in (None, signal.SIGINT)
        self._mark_if_due(event, now)

    def figures(self) -> Mapping[str, float]:
        """Return the metrics for the monitors."""
        return {"goodput": self._ledger.goodput.share}

    def _count(self, kind: TimeCategory, seconds: float) -> None:
        self._seconds[kind] += seconds

    def _count_stall(self, elapsed: float, stall: float, kind: TimeCategory) -> None:
        self._count(TimeCategory.COMPUTE, elapsed)  # the step under way
        stall = min(stall, self._seconds[TimeCategory.COMPUTE])
        self._count(TimeCategory.COMPUTE, -stall)
        self._count(kind, stall)

    def _count_step(self, elapsed: float, wait: float) -> None:
        waited = min(elapsed, max(0.0, wait - self._known_wait))
        compiled = self._compile_seconds()
        compiling = min(elapsed - waited, compiled - self._compiled)
        self._known_wait, self._compiled = 0.0, compiled
        self._count(TimeCategory.DATA, waited)
        self._count(TimeCategory.START_UP, compiling)
        self._count(TimeCategory.COMPUTE, elapsed - waited - compiling)

    def _mark_if_due(self, event: Event, now: float) -> None:
        before = self._step
        if isinstance(event, (RunStarted, StepCompleted, RolledBack, RunFinished, RunFailed)):
            self._step = event.progress.step
        if self._step is None:
            return
        if before is not None and self._step < before:
            self._mark(before, now)
        has_fallen = before is not None and self._step < before
        is_due = now - self._marked >= max(1.0, (now - self._began) / 500)
        if is_due or has_fallen or isinstance(event, (RunStarted, RunFinished, RunFailed, CheckpointSaved)):
            self._mark(self._step, now, is_planned_end=isinstance(event, RunFinished) and not self._is_preempted)

    def _mark(self, step: int, now: float, *, is_planned_end: bool = False) -> None:
        self._marked = now
        mark = TimeSample(self._origin + self._began, self._origin + now, step, dict(self._seconds), is_planned_end)
        self._ledger.add(mark)
        self._write(mark)
