"""Verifies older checkpoints before they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from holdfast.application.concurrency.background import BackgroundWorker
from holdfast.domain.commands import ReportDamage

if TYPE_CHECKING:
    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import CheckpointSaved, Event
    from holdfast.ports.state_store import StateStore


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
