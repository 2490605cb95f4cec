"""The answer to a step that does not fit into memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from holdfast.domain.commands import SplitBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import BatchSplit, MemoryExhausted, StepCompleted
    from holdfast.domain.training.micro_batch import MicroBatchPolicy, MicroBatchState


@final
class AdaptMicroBatch:
    """Asks for fewer rows at once, so that the same batch is tried again, and for more again after quiet steps.

    ``keep`` remembers what is known for later runs; ``memory_retries`` tells how often so far the allocator gave memory
    back to get what it was asked for, a sign that a shortage is near. Before more rows are tried it is told that they
    do not fit: a process that the operating system kills for them does not try them first when it is started again.
    """

    def __init__(
        self,
        policy: MicroBatchPolicy,
        known: MicroBatchState,
        inbox: Inbox,
        keep: Callable[[MicroBatchState], object],
        *,
        memory_retries: Callable[[], int] = lambda: 0,
    ) -> None:
        self._policy = policy
        self._known = known
        self._inbox = inbox
        self._keep = keep
        self._is_unproved = False
        self._count_retries = memory_retries
        self._memory_retries = 0

    def on_shortage(self, event: MemoryExhausted) -> None:
        """Answer a shortage; at one row there is no remedy."""
        self._known = self._policy.after_shortage(self._known, event.micro_batch)
        self._is_unproved = False
        self._keep(self._known)
        if self._known.rows < event.micro_batch:
            self._inbox.post(SplitBatch(self._known.rows))

    def on_split(self, event: BatchSplit) -> None:
        """Take note of a size that somebody else asked for."""
        if event.micro_batch != self._known.rows:
            self._known = replace(self._known, rows=event.micro_batch, quiet_steps=0)

    def on_step(self, _: StepCompleted) -> None:
        """Count quiet steps, which are those that the allocator managed without giving back what it had kept."""
        if self._is_unproved:
            self._is_unproved = False
            self._keep(self._known)
        before, self._memory_retries = self._memory_retries, self._count_retries()
        is_quiet = before == self._memory_retries
        known, self._known = self._known, self._policy.after_step(self._known, is_quiet=is_quiet)
        if self._known.rows > known.rows:
            self._keep(self._policy.after_shortage(known, self._known.rows))
            self._is_unproved = True
            self._inbox.post(SplitBatch(self._known.rows))
