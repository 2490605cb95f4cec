"""Records the actions of a run on its checkpoints in the audit log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from holdfast.domain.events import (
    ArchiveFailed,
    CheckpointArchived,
    CheckpointFailed,
    CheckpointMoved,
    CheckpointRejected,
    CheckpointSaved,
    ContractWeakened,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    StopRequested,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.domain.events import Event
    from holdfast.domain.training.progress import Progress

_LONGEST_ERROR = 2000


@final
class RecordAudit:
    """Passes the events that the audit covers to ``append``: the event's name, and details that JSON can hold."""

    def __init__(self, append: Callable[[str, Mapping[str, Any]], object]) -> None:
        self._append = append

    def __call__(self, event: Event) -> None:
        """Append ``event``, if the audit covers it."""
        if (details := _details_of(event)) is not None:
            self._append(type(event).__name__, details)


def _details_of(event: Event) -> Mapping[str, Any] | None:  # noqa: C901, PLR0911  a table of events
    match event:
        case RunStarted(progress) | RunFinished(progress):
            return _where(progress)
        case CheckpointSaved(progress, location, reason):
            return {**_where(progress), "location": location, "reason": str(reason)}
        case CheckpointFailed(progress, reason, problem):
            return {**_where(progress), "reason": str(reason), "problem": problem[:_LONGEST_ERROR]}
        case CheckpointArchived(step, location):
            return {"step": step, "location": location}
        case ArchiveFailed(step, problem):
            return {"step": step, "problem": problem[:_LONGEST_ERROR]}
        case CheckpointMoved(step, source, target, reason):
            return {"step": step, "from": str(source), "to": str(target), "reason": reason}
        case ContractWeakened(progress, reasons):
            return {**_where(progress), "reasons": list(reasons)}
        case RolledBack(progress, from_step, reason):
            return {**_where(progress), "from_step": from_step, "reason": reason}
        case CheckpointRejected(name, reason, location):
            return {"name": name, "reason": str(reason), "location": location}
        case StopRequested(progress, reason, signal):
            return {**_where(progress), "reason": reason, "signal": signal}
        case RunFailed(progress, error):
            return {**_where(progress), "error": f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]}
        case _:
            return None


def _where(progress: Progress) -> dict[str, int]:
    return {"step": progress.step, "tokens": progress.tokens}
