"""The answer to a step that does not fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from domain.commands import SplitBatch

if TYPE_CHECKING:
    from application.inbox import Inbox
    from domain.events import MemoryExhausted


@final
class HalveMicroBatch:
    """Asks for micro-batches of half the rows, so that the same batch is tried again; at one row it has no remedy."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def __call__(self, event: MemoryExhausted) -> None:
        """Answer ``event``."""
        if event.micro_batch > 1:
            self._inbox.post(SplitBatch((event.micro_batch + 1) // 2))
