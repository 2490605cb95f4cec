"""Asks for checkpoints: at regular steps, at a stop and after a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from holdfast.domain.commands import SaveCheckpoint, SaveReason
from holdfast.domain.resources.knobs import Knob
from holdfast.domain.training.cadence import Cadence

if TYPE_CHECKING:
    from holdfast.application.checkpointing.checkpointer import Checkpointer
    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import ResourcesAdjusted, RunFailed, StepCompleted, StopRequested
    from holdfast.domain.training.budget import Budget
    from holdfast.ports.process_group import ProcessGroup


@final
class SaveOnCadence:
    """Asks for a checkpoint when one is due and at the end of the budget; the cadence may change during the run."""

    def __init__(self, cadence: Cadence, budget: Budget, inbox: Inbox) -> None:
        self._cadence = cadence
        self._budget = budget
        self._inbox = inbox

    def __call__(self, event: StepCompleted) -> None:
        """Answer ``event``."""
        if self._budget.is_spent_by(event.progress):
            self._inbox.post(SaveCheckpoint(SaveReason.FINAL))
        elif self._cadence.is_due(event.progress.step):
            self._inbox.post(SaveCheckpoint())

    def on_adjusted(self, event: ResourcesAdjusted) -> None:
        """Adopt the new cadence of saves."""
        if event.knob is Knob.SAVE_EVERY:
            self._cadence = Cadence(event.after)


@final
class SaveOnStop:
    """Asks for a checkpoint when the run is asked to stop."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def __call__(self, event: StopRequested) -> None:
        """Answer ``event``."""
        self._inbox.post(SaveCheckpoint(SaveReason.FINAL if event.signal is None else SaveReason.PREEMPT))


@final
class SaveOnFailure:
    """Makes the last complete step durable after an error: the only handler that acts itself, as the loop has ended.

    With several ranks it belongs to a rank that holds the whole state, and ``alone`` is a group of this rank: the other
    ranks may be gone. A state whose position the other ranks know a part of is not saved.
    """

    def __init__(self, checkpoints: Checkpointer, *, alone: ProcessGroup | None = None) -> None:
        self._checkpoints = checkpoints
        self._alone = alone

    def __call__(self, event: RunFailed) -> None:
        """Answer ``event``."""
        if self._alone is not None:
            if event.progress.cursor.lanes:
                return
            self._checkpoints.leave_group(self._alone)
        try:
            self._checkpoints.save(event.progress, SaveReason.EXCEPTION)
        finally:
            self._checkpoints.flush()


@final
class LeaveShareOnFailure:
    """Makes this rank's part of the last complete step durable after an error of a run whose state is sharded."""

    def __init__(self, checkpoints: Checkpointer) -> None:
        self._checkpoints = checkpoints

    def __call__(self, event: RunFailed) -> None:
        """Answer ``event``."""
        self._checkpoints.leave_share(event.progress)
