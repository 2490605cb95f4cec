"""Records the metrics of a run with its monitors."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from holdfast.application.handlers.monitor_thread import close_all, settle_all
from holdfast.application.thread_pool import BackgroundWorker
from holdfast.domain.errors import TrainingError
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
from holdfast.domain.run_end import LifecycleState, RunEnd
from holdfast.ports.monitor import EndState, NoteKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.application.handlers.monitor_thread import MonitorThread
    from holdfast.application.handlers.profile_steps import Compilations
    from holdfast.domain.events import CheckpointStarted, DataEnded, Event
    from holdfast.domain.fault_tolerance.goodput import TimeAccount
    from holdfast.ports.optimizer import Trainable

_END_SECONDS = 15.0
_ENDS = {LifecycleState.STOPPED: EndState.STOPPED, LifecycleState.FAILED: EndState.FAILED}
_SHARE_OF_GRACE = 0.1


@final
@dataclass(frozen=True, slots=True)
class MonitorLimits:
    """The limits of what a run does for its monitors.

    It waits ``patience_seconds`` for each, after a signal a tenth of ``grace_seconds`` at most. ``most_waiting`` steps
    wait for the device.
    """

    grace_seconds: float = math.inf
    patience_seconds: float = 30.0
    most_waiting: int = 10_000


@final
class RecordMetrics:
    """Passes the figures of each step and each evaluation to every monitor, and events as notes to the trackers.

    A thread reads the loss, which waits for the device, while training continues; each monitor has a thread of its own.
    An error is raised at a later event, where the bus turns it into ``HandlerFailed``. The run waits for the monitors
    at its start, before each checkpoint and at its end, so that no figure of a saved step is lost, but not for
    trackers: they get the figures that they lack again. If a monitor hangs beyond ``limits``, ``TrainingError`` is
    raised, and the checkpoint is made without its figures. If too many steps wait for the device, figures are dropped,
    which raises as well.
    ``extra_metrics`` are called in the thread for further figures of each step. ``sentence_of`` puts an event into
    words, None if it is not worth a note.
    """

    def __init__(
        self,
        monitors: Sequence[MonitorThread],
        trainable: Trainable,
        compilations: Compilations | None = None,
        *,
        extra_metrics: Sequence[Callable[[], Mapping[str, float]]] = (),
        sentence_of: Callable[[Event], str | None] = lambda _: None,
        report: Callable[[str], object] = lambda _: None,
        limits: MonitorLimits | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._monitors = monitors
        self._trackers = [monitor for monitor in monitors if monitor.is_tracker]
        self._trainable = trainable
        self._compilations = compilations
        self._extra_metrics = extra_metrics
        self._compile_seconds = 0.0
        self._clock = clock
        self._sentence_of = sentence_of
        self._report = report
        self._limits = limits = limits or MonitorLimits()
        self._patience = limits.patience_seconds
        self._thread = BackgroundWorker("metrics")
        self._start = RunEnd()
        self._end: EndState | None = None
        self._step = 0
        self._completed = -math.inf
        self._memory_bytes = 0
        self._asked = -math.inf
        self._dropped = 0

    def on_start(self, event: RunStarted | RolledBack) -> None:
        """Make the monitors forget steps that are about to be taken again."""
        self._step = step = event.progress.step
        if self._compilations is not None:
            self._compile_seconds = self._compilations.seconds
        self._thread.submit(lambda: self._rewind(step))
        try:
            self._settle(event)  # a tracker is sent what the record of the run has by now
        finally:
            for tracker in self._trackers:
                tracker.rewind(step)
        self._raise_error()

    def on_step(self, event: StepCompleted) -> None:
        """Queue a step for the monitors."""
        completed, self._step = self._clock(), event.progress.step
        if self._thread.waiting < self._limits.most_waiting:
            compiling = self._compiling()
            self._thread.submit(lambda: self._record_step(event, completed, compiling))
        else:
            self._drop()
        self._raise_error()

    def on_evaluation(self, event: EvaluationCompleted) -> None:
        """Queue an evaluation for the monitors."""
        self._thread.submit(lambda: self._record_evaluation(event))
        self._raise_error()

    def on_suite(self, event: SuiteEvaluated) -> None:
        """Queue the results of benchmark suites for the monitors, at the step of their checkpoint."""
        metrics = {
            f"suite/{task}/{name}": value for task, figures in event.results.items() for name, value in figures.items()
        }
        self._thread.submit(lambda: self._record(event.step, metrics))
        self._raise_error()

    def on_event(self, event: Event) -> None:
        """Queue ``event`` for the trackers: a sentence, if it is worth one, and the texts of samples."""
        if not self._trackers:
            return
        samples = event.samples if isinstance(event, TextGenerated) else ()
        text = self._sentence_of(event)
        for tracker in self._trackers:
            for sample in samples:
                tracker.note(self._step, NoteKind.SAMPLE, f"{sample.prompt}{sample.text}")
            if text is not None:
                tracker.event(self._step, type(event).__name__, text)

    def on_data_end(self, event: DataEnded) -> None:
        """Take the stop that follows for the end of the run."""
        self._start.add(event)

    def on_stop(self, event: StopRequested) -> None:
        """Wait less from here on if a signal has left little time."""
        self._start.add(event)
        if event.signal is not None:
            self._patience = min(self._patience, self._limits.grace_seconds * _SHARE_OF_GRACE)

    def on_checkpoint(self, event: CheckpointStarted) -> None:
        """Wait for the figures so far, and let the trackers make them durable.

        Raises ``TrainingError`` if a monitor takes too long.
        """
        self._settle(event)
        for tracker in self._trackers:
            tracker.flush(event.progress.step)
        self._raise_error()

    def on_end(self, event: RunFinished | RunFailed) -> None:
        """Wait for the last figures, and let the trackers make them durable.

        Raises ``TrainingError`` if a monitor takes too long.
        """
        self._start.add(event)
        self._end = _ENDS.get(self._start.state, EndState.FINISHED)
        try:
            self._settle(event)
        finally:
            for tracker in self._trackers:
                tracker.flush(event.progress.step, is_last=True)
        self._raise_error()

    def close(self) -> None:
        """Tell the trackers how the run has ended, and close all monitors; report those that fail or take too long."""
        self._thread.close(self._patience)
        if self._end is not None:  # events, and a last checkpoint, may follow the end of a run
            for tracker in self._trackers:
                tracker.finish(self._end)
        for problem in close_all(self._monitors, min(self._patience, _END_SECONDS)):
            self._report(problem)

    def _record_step(self, event: StepCompleted, completed: float, compiling: Mapping[str, float]) -> None:
        outcome, hardware = event.outcome, self._trainable.hardware
        supply = outcome.supply
        loss, grad_norm = outcome.loss, float(outcome.grad_norm)
        # the engine waits for the losses: the time at which this thread comes to read them says nothing of the step
        began = max(self._completed, completed - outcome.step_seconds - supply.wait_seconds)
        self._completed = completed
        tokens_per_second = outcome.num_tokens / max(completed - began, 1e-9)
        metrics = {
            "tokens": event.progress.tokens,
            "loss": loss,
            "lr": outcome.learning_rate,
            "grad_norm": grad_norm,
            "tokens_per_second": tokens_per_second,
            "data_wait_seconds": supply.wait_seconds,
            "batches_ready": supply.batches_ready,
            "bytes_read": supply.bytes_read,
            "read_retries": supply.read_retries,
            "rejected": supply.rejected,
            "memory_bytes": self._sampled_memory(),
            "micro_batch": outcome.micro_batch,
            "dropped_updates": event.progress.health.dropped,
            "rollbacks": len(event.progress.health.returns),
            "memory_retries": self._trainable.memory_retries,
            **compiling,
            **{name: float(value) for name, value in event.figures.items()},
        }
        for figures in self._extra_metrics:
            metrics |= figures()
        if hardware.peak_flops is not None and hardware.flops_per_token is not None:
            metrics["mfu"] = tokens_per_second * hardware.flops_per_token / hardware.peak_flops
        self._record(event.progress.step, metrics)

    def _compiling(self) -> Mapping[str, float]:
        """Return the compilations of the step; called in the loop, as the next step may compile again."""
        if (compilations := self._compilations) is None:
            return {}
        before, self._compile_seconds = self._compile_seconds, compilations.seconds
        return {"compile_seconds": compilations.seconds - before, "recompiles": compilations.recompiles}

    def _record_evaluation(self, event: EvaluationCompleted) -> None:
        evaluation = event.evaluation
        self._record(event.progress.step, {"tokens": event.progress.tokens, **evaluation.metrics})

    def _sampled_memory(self) -> int:
        """Return the memory in use, queried at most once a second, as this takes longer than all other work here."""
        now = time.monotonic()
        if now - self._asked >= 1.0:
            self._asked, self._memory_bytes = now, self._trainable.memory_bytes()
        return self._memory_bytes

    def _record(self, step: int, metrics: Mapping[str, float]) -> None:
        for monitor in self._monitors:
            monitor.record(step, metrics)

    def _rewind(self, step: int) -> None:
        for monitor in self._monitors:
            if not monitor.is_tracker:
                monitor.rewind(step)

    def _settle(self, event: Event) -> None:
        """Wait until all figures have reached the monitors; raises ``TrainingError`` if one takes too long."""
        late = [] if self._thread.settle(self._patience) else ["the device"]
        others = [monitor for monitor in self._monitors if not monitor.is_tracker]
        late += [f"the monitor {monitor.name}" for monitor in settle_all(others, self._patience)]
        if late:
            msg = f"{' and '.join(late)} did not answer within {self._patience:.0f} s at {type(event).__name__}"
            raise TrainingError(msg)

    def _raise_error(self) -> None:
        self._thread.raise_errors()
        for monitor in self._monitors:
            if (error := monitor.take_error()) is not None:
                raise error

    def _drop(self) -> None:
        self._dropped += 1
        if self._dropped % self._limits.most_waiting == 1:
            msg = (
                f"the monitors are {self._limits.most_waiting:,} steps behind: figures are dropped until they catch up"
            )
            raise TrainingError(msg)


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
