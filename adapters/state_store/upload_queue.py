"""The queue of checkpoints to be copied to the archive, and the state of each copy."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, final

from holdfast.domain.checkpoints.tiers import CopyState, advanced

if TYPE_CHECKING:
    from collections.abc import Collection


@final
class UploadQueue:
    """Steps whose copies are pending or in progress, between ``open`` and ``close``; for any number of threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._copies: dict[int, CopyState] = {}
        self.is_open = False

    def open(self) -> None:
        """Take steps from now on."""
        with self._changed:
            self.is_open = True

    def close(self) -> None:
        """Give no more steps to ``take``; a thread that waits in ``take`` gets None."""
        with self._changed:
            self.is_open = False
            self._changed.notify_all()

    def want(self, step: int, *, only: bool) -> Collection[int]:
        """Add ``step`` to the queue; with ``only`` the other pending steps are removed and returned."""
        with self._changed:
            given_up = [other for other in self._pending() if other != step] if only else []
            for other in given_up:
                advanced(self._copies.pop(other), CopyState.DELETED)
            self._copies.setdefault(step, CopyState.PENDING)
            self._changed.notify_all()
        return given_up

    def take(self) -> int | None:
        """Wait for a step to copy and return the newest; None once this is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending() or not self.is_open)
            if not self.is_open:
                return None
            step = max(self._pending())
            self._copies[step] = advanced(self._copies[step], CopyState.IN_PROGRESS)
            return step

    def end(self, step: int, state: CopyState) -> None:
        """Record the final state of a step that was taken."""
        with self._changed:
            advanced(self._copies.pop(step), state)
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait up to ``seconds`` for all copies; return whether none is pending or in progress."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._copies and self.is_open), seconds)

    def _pending(self) -> Collection[int]:
        return [step for step, state in self._copies.items() if state is CopyState.PENDING]
