"""Collects the facts about a failure and has them written to the post-mortem."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, final

from holdfast.application.handlers.record_events import record_of
from holdfast.domain.events import CheckpointSaved, EvaluationProgressed, RunFailed, RunStarted, StepCompleted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from holdfast.domain.events import Event
    from holdfast.domain.training.step_outcome import Progress

_MOST_EVENTS = 200


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a run on this rank: ``progress`` is the last complete step, ``saved`` the last durable one.

    ``events`` are this rank's last events, ``resources`` the resources in use when the error occurred.
    """

    error: BaseException
    progress: Progress
    saved: int
    events: Sequence[Mapping[str, Any]]
    resources: Mapping[str, Any]


@final
class WritePostMortem:
    """Remembers the last events and passes them to ``write`` if the run fails; rank-local, without a collective.

    ``on_event`` must be the first handler of every event, so that ``resources`` are those of the failure, and
    ``on_failure`` one of ``RunFailed`` after that of the save. ``folder`` is then what ``write`` has returned.
    """

    def __init__(self, resources: Callable[[], Mapping[str, Any]], write: Callable[[Failure], Path]) -> None:
        self._resources = resources
        self._write = write
        self._events: deque[Mapping[str, Any]] = deque(maxlen=_MOST_EVENTS)
        self._saved = 0
        self._found: Mapping[str, Any] = {}
        self.folder: Path | None = None

    def on_event(self, event: Event) -> None:
        """Remember ``event``; of a step only the figures that need no waiting for the device."""
        match event:
            case StepCompleted(progress, outcome):
                time = datetime.now(UTC).isoformat()
                seconds = {"step_seconds": outcome.step_seconds, "data_wait_seconds": outcome.supply.wait_seconds}
                self._events.append({"time": time, "event": "StepCompleted", "step": progress.step, **seconds})
                return
            case EvaluationProgressed():
                return
            case RunStarted(progress) | CheckpointSaved(progress):
                self._saved = progress.step
            case RunFailed():
                self._found = self._resources()
        self._events.append(record_of(event))

    def on_failure(self, event: RunFailed) -> None:
        """Write the post-mortem."""
        self.folder = self._write(Failure(event.error, event.progress, self._saved, tuple(self._events), self._found))
