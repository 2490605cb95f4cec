"""Emits lineage events about a run: the versions of data that it reads, and the folder that it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

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
