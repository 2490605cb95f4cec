"""Asks for checkpoints: at regular steps and times, at a stop and after a failure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, final

from holdfast.application.thread_pool import BackgroundWorker
from holdfast.domain.commands import DropCopy, ReportDamage, SaveCheckpoint, SaveReason
from holdfast.domain.events import CheckpointFailed, CheckpointSaved, CheckpointStarted, RunFailed, RunStarted
from holdfast.domain.phase import saving_phase
from holdfast.domain.resources.balance_policy import Knob
from holdfast.domain.training.cadence import Cadence, SaveCost, seconds_between_saves

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.checkpointer import Checkpointer
    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import Event, ResourcesAdjusted, StepCompleted, StopRequested
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.budget import Budget
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.state_store import StateStore


@final
class SaveTimer:
    """Says when the last checkpoint is as old as ``seconds_between_saves`` allows, by the ``clock`` of this process.

    ``between_failures`` are the mean seconds between failures of the run, None if it had none.
    """

    def __init__(self, *, between_failures: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._between_failures = between_failures
        self._clock = clock
        self._began = self._last = clock()
        self._cost = SaveCost()
        self._is_saving = False

    def subscriptions(self) -> list[tuple[type[Event], Callable[[Any], object]]]:
        """Return the events that this answers, with the method for each."""
        ends = [(kind, self.on_end_of_save) for kind in (CheckpointSaved, CheckpointFailed)]
        return [(RunStarted, self.on_start), (CheckpointStarted, self.on_save), *ends]

    def on_start(self, _: RunStarted) -> None:
        """Count from the start of training on."""
        self._began = self._last = self._clock()

    def on_save(self, _: CheckpointStarted) -> None:
        """Count from the beginning of each save on, whoever asked for it."""
        self._last, self._is_saving = self._clock(), True

    def on_end_of_save(self, event: CheckpointSaved | CheckpointFailed) -> None:
        """Adopt the cost of a save that succeeded."""
        self._is_saving = False
        if isinstance(event, CheckpointSaved):
            self._cost = SaveCost(event.stall_seconds, event.seconds)

    def is_due(self) -> bool:
        """Return whether a checkpoint is due; never while one is being written."""
        now = self._clock()
        allowed = seconds_between_saves(now - self._began, self._cost, self._between_failures)
        return not self._is_saving and now - self._last >= allowed


@final
class SaveOnCadence:
    """Asks for a checkpoint when one is due and at the end of the budget; the cadence may change during the run.

    With a ``timer`` checkpoints are due by time too: with several ranks the first one has it, and all follow.
    """

    def __init__(self, cadence: Cadence, budget: Budget, inbox: Inbox, timer: SaveTimer | None = None) -> None:
        self._cadence = cadence
        self._budget = budget
        self._inbox = inbox
        self._timer = timer

    def __call__(self, event: StepCompleted) -> None:
        """Answer ``event``."""
        if self._budget.is_spent_by(event.progress):
            self._inbox.post(SaveCheckpoint(SaveReason.FINAL))
        elif self._cadence.is_due(event.progress.step) or (self._timer is not None and self._timer.is_due()):
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


@final
class ShowSaves:
    """Shows the saves that the run waits for, and after the last one ``afterwards``."""

    EVENTS = (RunStarted, RunFailed, CheckpointStarted, CheckpointSaved, CheckpointFailed)

    def __init__(self, show: ShowPhase, afterwards: str = "") -> None:
        self._show = show
        self._afterwards = afterwards

    def __call__(self, event: Event) -> None:
        """Answer ``event``; periodic saves are not shown, as training does not wait for them."""
        match event:
            case CheckpointStarted(progress, reason) if reason != SaveReason.PERIODIC:
                self._show(saving_phase(progress.step))
            case CheckpointSaved(_, _, reason) if reason in (SaveReason.FINAL, SaveReason.PREEMPT):
                self._show(self._afterwards)
            case _:
                self._show("")


@final
class ScrubCheckpoints:
    """Has an older checkpoint verified in a thread every ``every`` saves, and reports a damaged one.

    If a verification is still running when the next one is due, the next one is skipped.
    """

    def __init__(self, store: StateStore, inbox: Inbox, *, every: int) -> None:
        self._store = store
        self._inbox = inbox
        self._every = every
        self._saves = 0
        self._thread = BackgroundWorker("scrub")
        self._is_looking = False

    def __call__(self, event: CheckpointSaved) -> None:  # noqa: ARG002  only its occurrence counts
        """Count a save, and start a verification if one is due."""
        self._saves += 1
        if self._saves % self._every == 0 and not self._is_looking:
            self._is_looking = True
            self._thread.submit(self._look)
        self._thread.raise_errors()

    def on_end(self, event: Event) -> None:  # noqa: ARG002  however it ended
        """End the thread without waiting for a verification under way."""
        self._thread.close(0)

    def _look(self) -> None:
        try:
            for rejected in self._store.scrub():
                self._inbox.post(ReportDamage(rejected.name, rejected.reason, rejected.location))
        finally:
            self._is_looking = False


_SECONDS = 1.0


@final
class DropMemoryCopy:
    """Asks for the copy of the state in memory to be freed once ``is_tight`` says that memory is nearly full.

    Checks at most once a second, and asks once until memory has been free again.
    """

    def __init__(
        self, is_tight: Callable[[], bool], inbox: Inbox, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_tight = is_tight
        self._inbox = inbox
        self._clock = clock
        self._looked = clock()
        self._was_tight = False

    def __call__(self, event: StepCompleted) -> None:  # noqa: ARG002  that time has passed is enough
        """Check the memory if a second has passed."""
        if self._clock() - self._looked < _SECONDS:
            return
        self._looked = self._clock()
        was_tight, self._was_tight = self._was_tight, self._is_tight()
        if self._was_tight and not was_tight:
            self._inbox.post(DropCopy())
