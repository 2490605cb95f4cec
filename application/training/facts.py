"""What threads have found, which only the loop may publish."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.domain.commands import AcknowledgeArchive, AcknowledgeMove, ReportDamage, ReportStall
from holdfast.domain.events import ArchiveFailed, CheckpointArchived, CheckpointMoved, CheckpointRejected, RunStalled

if TYPE_CHECKING:
    from holdfast.domain.events import Event
    from holdfast.domain.training.progress import Progress


def fact_of(command: AcknowledgeArchive | AcknowledgeMove | ReportDamage | ReportStall, progress: Progress) -> Event:
    """Return the event that ``command`` brings from a thread to a run that has come as far as ``progress``."""
    match command:
        case AcknowledgeArchive(step, location, seconds, problem):
            arrived = problem is None
            return CheckpointArchived(step, location, seconds) if arrived else ArchiveFailed(step, str(problem))
        case AcknowledgeMove(step, source, target, reason):
            return CheckpointMoved(step, source, target, reason)
        case ReportDamage(name, reason, location):
            return CheckpointRejected(name, reason, location)
        case ReportStall(seconds, reason):
            return RunStalled(progress, seconds, reason)
