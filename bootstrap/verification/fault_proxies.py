"""Faulty ports that drills wrap around those of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, SupportsFloat, final

from typing_extensions import override

from holdfast.ports.forwarding.optimizer import ForwardingTrainable, ForwardingUpdate
from holdfast.ports.forwarding.state_store import ForwardingStateStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from holdfast.application.data.feed import BatchStream
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.data.cursor import Cursor
    from holdfast.ports.optimizer import Trainable, Update
    from holdfast.ports.state_store import CheckpointInfo, Snapshot, StateStore


@final
@dataclass(slots=True)
class Hooks:
    """Functions that are called at certain points of a run; they may raise or delay.

    ``before_part`` gets the step and the rows of a micro-batch. ``adjust_loss`` gets the step, the samples up to the
    batch's end and the loss, and returns the loss to report. The others get a step.
    """

    before_part: list[Callable[[int, int], object]] = field(default_factory=list)
    adjust_loss: list[Callable[[int, int, SupportsFloat], SupportsFloat]] = field(default_factory=list)
    before_apply: list[Callable[[int], object]] = field(default_factory=list)
    before_save: list[Callable[[int], object]] = field(default_factory=list)
    before_batch: list[Callable[[int], object]] = field(default_factory=list)


@final
class FaultyTrainable(ForwardingTrainable):
    """Trains as ``inner`` does, and calls ``hooks`` during each step."""

    def __init__(self, inner: Trainable, hooks: Hooks) -> None:
        super().__init__(inner)
        self.hooks = hooks

    @override
    def update(self, *, step: int, learning_rate: float) -> Update:
        return _FaultyUpdate(self.inner.update(step=step, learning_rate=learning_rate), self.hooks, step)


@final
class _FaultyUpdate(ForwardingUpdate):
    def __init__(self, inner: Update, hooks: Hooks, step: int) -> None:
        super().__init__(inner)
        self._hooks = hooks
        self._step = step

    @override
    def accumulate(self, part: Batch, *, weight: float, last: bool) -> SupportsFloat:
        for inject in self._hooks.before_part:
            inject(self._step, part.num_rows)
        loss = super().accumulate(part, weight=weight, last=last)
        for adjust in self._hooks.adjust_loss:
            loss = adjust(self._step, part.cursor.samples, loss)
        return loss

    @override
    def apply(self) -> SupportsFloat:
        for inject in self._hooks.before_apply:
            inject(self._step)
        return super().apply()


@final
class FaultyStateStore(ForwardingStateStore):
    """Stores checkpoints in ``inner``, and calls ``hooks`` before each save."""

    def __init__(self, inner: StateStore, hooks: Hooks) -> None:
        super().__init__(inner)
        self._hooks = hooks

    @override
    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        for inject in self._hooks.before_save:
            inject(snapshot.progress.step)
        return super().save(snapshot)


@final
class FaultyStream:
    """Yields the batches of ``inner``, and calls ``hooks`` before each, in the thread that prefetches.

    The step that the hooks get is right for a run that has skipped no batches.
    """

    def __init__(self, inner: BatchStream, hooks: Hooks) -> None:
        self._inner = inner
        self._hooks = hooks

    @property
    def threads(self) -> int:
        """Return the number of threads that read for the batches."""
        return self._inner.threads

    @threads.setter
    def threads(self, threads: int) -> None:
        self._inner.threads = threads

    @property
    def max_threads(self) -> int:
        """Return the largest useful number of threads."""
        return self._inner.max_threads

    def interrupt(self) -> None:
        """End a wait within ``batches``."""
        self._inner.interrupt()

    def batches(self, cursor: Cursor) -> Generator[Batch]:
        """Yield the batches that follow ``cursor``."""
        before = cursor.samples
        for batch in self._inner.batches(cursor):
            step = batch.cursor.samples // max(1, batch.cursor.samples - before)
            before = batch.cursor.samples
            for inject in self._hooks.before_batch:
                inject(step)
            yield batch
