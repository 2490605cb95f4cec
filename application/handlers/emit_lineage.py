"""Emits lineage events about a run: the versions of data that it reads, and the folder that it writes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, final

from holdfast.application.thread_pool import BackgroundWorker
from holdfast.domain.data.dataset_version import JobExecution, JobState
from holdfast.domain.events import RunFailed, RunFinished, RunStarted
from holdfast.domain.run_end import LifecycleState, RunEnd
from holdfast.domain.urls import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.domain.data.dataset_version import LineageDataset, LineageEvent
    from holdfast.domain.events import Event

_LONGEST_ERROR = 2000


@final
class EmitLineage:
    """Emits START, and at the end COMPLETE, ABORT if the run was asked to stop before its end, or FAIL.

    ``hide`` removes secrets from the message of an error.
    """

    def __init__(
        self,
        emit: Callable[[LineageEvent], object],
        job: str,
        inputs: Sequence[LineageDataset],
        outputs: Sequence[LineageDataset],
        hide: Callable[[str], str],
    ) -> None:
        self._emit = emit
        self._execution = JobExecution(job)
        self._inputs = inputs
        self._outputs = outputs
        self._hide = hide
        self._end = RunEnd()

    def __call__(self, event: Event) -> None:
        """Emit what ``event`` means for the job, if anything."""
        self._end.add(event)
        match event:
            case RunStarted():
                self._enter(JobState.START)
            case RunFinished():
                self._enter(JobState.ABORT if self._end.state is LifecycleState.STOPPED else JobState.COMPLETE)
            case RunFailed(_, error):
                reason = describe(error) if isinstance(error, Exception) else ""
                message = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
                self._enter(JobState.FAIL, self._hide(message)[:_LONGEST_ERROR])

    def _enter(self, state: JobState, error: str | None = None) -> None:
        self._emit(self._execution.event(state, self._inputs, self._outputs, error))


_MOST_WAITING = 100  # a run has a few events; more wait only if the receiver does not answer


@final
class LineageQueue:
    """Passes events to ``send``, one after another, in a thread.

    An error never reaches the caller: the first one is reported, without secrets, and later events are tried again.
    ``close`` waits at most ``seconds``. Events beyond a hundred that wait are dropped.
    """

    def __init__(
        self, send: Callable[[LineageEvent], object], report: Callable[[str], object], *, seconds: float = 5.0
    ) -> None:
        self._send = send
        self._report = report
        self._seconds = seconds
        self._worker = BackgroundWorker("holdfast-lineage")
        self._has_failed = False

    def emit(self, event: LineageEvent) -> None:
        """Queue ``event``; returns at once."""
        if self._worker.waiting < _MOST_WAITING:
            self._worker.submit(partial(self._try, event))
        else:
            self._fail("the receiver does not answer")

    def close(self) -> None:
        """Wait for the queued events, at most ``seconds``; ``emit`` may be called again afterwards."""
        if not self._worker.settle(self._seconds):
            self._fail(f"the receiver has not answered within {self._seconds:g} seconds")
        self._worker.close(0.0)

    def _try(self, event: LineageEvent) -> None:
        try:
            self._send(event)
        except Exception as error:  # noqa: BLE001  lineage must not end a run
            self._fail(describe(error))

    def _fail(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._report(f"lineage events could not be sent, and the run goes on without them: {reason}")
