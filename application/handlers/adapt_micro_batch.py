"""The adaptation of the micro-batch to the memory."""

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
    """Asks for a smaller micro-batch after an out-of-memory error, and for a larger one after quiet steps.

    ``store`` saves the state for later runs. ``memory_retries`` returns how often the allocator has had to free cached
    memory so far, a sign that memory is nearly full. Before a larger size is tried it is stored as one that does not
    fit, so that a process which the operating system kills for it does not try it first when it starts again.
    """

    def __init__(
        self,
        policy: MicroBatchPolicy,
        known: MicroBatchState,
        inbox: Inbox,
        store: Callable[[MicroBatchState], object],
        *,
        memory_retries: Callable[[], int] = lambda: 0,
    ) -> None:
        self._policy = policy
        self._known = known
        self._inbox = inbox
        self._store = store
        self._is_unproved = False
        self._count_retries = memory_retries
        self._memory_retries = 0

    def on_shortage(self, event: MemoryExhausted) -> None:
        """Halve the micro-batch; at one row there is no remedy."""
        if (rows := self.reduce(event.micro_batch)) < event.micro_batch:
            self._inbox.post(SplitBatch(rows))

    def reduce(self, rows: int) -> int:
        """Remember that ``rows`` did not fit into memory; return the size to use from now on, at least one row."""
        self._known = self._policy.after_shortage(self._known, rows)
        self._is_unproved = False
        self._store(self._known)
        return self._known.rows

    def on_split(self, event: BatchSplit) -> None:
        """Adopt a size that another handler asked for."""
        if event.micro_batch != self._known.rows:
            self._known = replace(self._known, rows=event.micro_batch, quiet_steps=0)

    def on_step(self, _: StepCompleted) -> None:
        """Count quiet steps: those for which the allocator freed no cached memory."""
        if self._is_unproved:
            self._is_unproved = False
            self._store(self._known)
        before, self._memory_retries = self._memory_retries, self._count_retries()
        is_quiet = before == self._memory_retries
        known, self._known = self._known, self._policy.after_step(self._known, is_quiet=is_quiet)
        if self._known.rows > known.rows:
            self._store(self._policy.after_shortage(known, self._known.rows))
            self._is_unproved = True
            self._inbox.post(SplitBatch(self._known.rows))
