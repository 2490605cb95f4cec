"""Files in the run folder by which a person stops a run or asks for a checkpoint."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from holdfast.domain.commands import SaveCheckpoint, StopRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import CheckpointFailed, CheckpointSaved, RunFinished, RunStarted, StepCompleted

SAVE, STOP = "SAVE", "STOP"
_SECONDS_BETWEEN_LOOKS = 1.0


@final
class ControlFiles:
    """Asks for a checkpoint where there is a file ``SAVE``, and for one and the end of the run where there is ``STOP``.

    ``is_there`` and ``remove`` take a file's name. A file is removed once its request is fulfilled, so no
    crash loses it; after a failed save the next check asks again. At most one check a second.
    """

    def __init__(
        self,
        is_there: Callable[[str], bool],
        remove: Callable[[str], object],
        inbox: Inbox,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_there = is_there
        self._remove = remove
        self._inbox = inbox
        self._clock = clock
        self._next_look = clock()
        self._asked_at: int | None = None
        self._is_stopping = False

    def on_start(self, _event: RunStarted) -> None:
        """Stop before the first step if there is a file ``STOP`` already."""
        self._look_for_stop()

    def on_step(self, event: StepCompleted) -> None:
        """Check for the files, if a second has passed."""
        if (now := self._clock()) < self._next_look:
            return
        self._next_look = now + _SECONDS_BETWEEN_LOOKS
        self._look_for_stop()
        if self._asked_at is None and self._is_there(SAVE):
            self._asked_at = event.progress.step
            self._inbox.post(SaveCheckpoint())

    def on_saved(self, event: CheckpointSaved) -> None:
        """Remove ``SAVE`` if the checkpoint is of the step at which the file was seen, or later."""
        if self._asked_at is not None and event.progress.step >= self._asked_at:
            self._asked_at = None
            self._remove(SAVE)

    def on_failed_save(self, _event: CheckpointFailed) -> None:
        """Ask again at the next check."""
        self._asked_at = None

    def on_end(self, _event: RunFinished) -> None:
        """Remove the files whose requests are fulfilled: everything that the run has done is durable."""
        if self._asked_at is not None:
            self._remove(SAVE)
        if self._is_stopping:
            self._remove(STOP)

    def _look_for_stop(self) -> None:
        if not self._is_stopping and self._is_there(STOP):
            self._is_stopping = True
            self._inbox.post(StopRun(f"the file {STOP} in the run folder asks for it"))
