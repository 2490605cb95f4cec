"""The states of a run, and the end of a start by its events."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, final

from holdfast.domain.events import RunStalled, StopRequested

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.domain.events import Event


class LifecycleState(StrEnum):
    """The states of a run; each command and page shows these words."""

    NOT_BEGUN = "not begun"
    """A start has made the folder, and ended before it recorded anything."""
    STARTING = "starting"
    """A process prepares the training."""
    TRAINING = "training"
    """A process trains."""
    SUSPENDED = "suspended"
    """A process works on the run, and is suspended, as by Ctrl-Z."""
    SILENT = "no sign of life"
    """A process holds the run, and no heartbeat comes from it."""
    FINISHED = "finished"
    """The budget is spent, or the data have ended."""
    STOPPED_EARLY = "stopped early"
    """Early stopping has ended the run."""
    STOPPED = "stopped"
    """The last start was asked to stop; the same command continues."""
    FAILED = "failed"
    """An error ended the last start."""
    HUNG = "hung"
    """The watchdog ended the last start."""
    CRASHED = "crashed"
    """The last start ended without a message, as by SIGKILL or a power cut."""

    @property
    def is_active(self) -> bool:
        """Return whether a process works on the run."""
        return self in (
            LifecycleState.STARTING,
            LifecycleState.TRAINING,
            LifecycleState.SUSPENDED,
            LifecycleState.SILENT,
        )


@final
class RunEnd:
    """The end of a start, followed event by event.

    ``at_finish`` is the state that ``RunFinished`` leads to: FINISHED, STOPPED_EARLY or STOPPED. ``state`` is that of
    a process which ends after the events so far; without another end it is CRASHED.
    """

    def __init__(self) -> None:
        self.at_finish = LifecycleState.FINISHED
        self.state = LifecycleState.CRASHED
        self._is_at_end = False

    def add(self, event: Event) -> None:
        """Add an event of the start."""
        self._add(type(event).__name__, is_early=isinstance(event, StopRequested) and event.is_early)

    def add_record(self, record: Mapping[str, Any]) -> None:
        """Add an event as ``events.jsonl`` has it."""
        # the watchdog has no step to tell: its RunStalled is the last word of a process that hangs
        is_last = record.get("event") == RunStalled.__name__ and "step" not in record
        self._add(str(record.get("event")), is_early=record.get("is_early") is True, is_last=is_last)

    def _add(self, event: str, *, is_early: bool, is_last: bool = False) -> None:
        if event == "RunStarted" or self.state is LifecycleState.HUNG:  # saves may follow another end
            self.state = LifecycleState.CRASHED
        match event:
            case "RunStarted":
                self.at_finish, self._is_at_end = LifecycleState.FINISHED, False
            case "DataEnded":  # the stop that follows is the loop's own
                self._is_at_end = True
            case "StopRequested" if not self._is_at_end:
                self.at_finish = LifecycleState.STOPPED_EARLY if is_early else LifecycleState.STOPPED
                self._is_at_end = is_early
            case "RunFinished":
                self.state = self.at_finish
            case "RunFailed":
                self.state = LifecycleState.FAILED
            case "RunStalled" if is_last:
                self.state = LifecycleState.HUNG
