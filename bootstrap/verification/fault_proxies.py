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
    """Functions called at places of a run, which may raise or take their time.

    ``before_part`` gets the step and the rows of a micro-batch, ``loss_told`` the step, the samples up to the batch's
    end and the loss, and returns the loss to report; the others get a step.
    """

    before_part: list[Callable[[int, int], object]] = field(default_factory=list)
    loss_told: list[Callable[[int, int, SupportsFloat], SupportsFloat]] = field(default_factory=list)
    before_apply: list[Callable[[int], object]] = field(default_factory=list)
    before_save: list[Callable[[int], object]] = field(default_factory=list)
    before_batch: list[Callable[[int], object]] = field(default_factory=list)


@final
class FaultyTrainable(ForwardingTrainable):
    """Trains as ``inner`` does, and asks ``hooks`` on the way."""

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
        for ask in self._hooks.before_part:
            ask(self._step, part.num_rows)
        loss = super().accumulate(part, weight=weight, last=last)
        for tell in self._hooks.loss_told:
            loss = tell(self._step, part.cursor.samples, loss)
        return loss

    @override
    def apply(self) -> SupportsFloat:
        for ask in self._hooks.before_apply:
            ask(self._step)
        return super().apply()


@final
class FaultyStateStore(ForwardingStateStore):
    """Keeps what ``inner`` keeps, and asks ``hooks`` before each save."""

    def __init__(self, inner: StateStore, hooks: Hooks) -> None:
        super().__init__(inner)
        self._hooks = hooks

    @override
    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        for ask in self._hooks.before_save:
            ask(snapshot.progress.step)
        return super().save(snapshot)


@final
class FaultyStream:
    """Gives the batches of ``inner``, and asks ``hooks`` before each, in the thread that reads ahead.

    The step that it names is that of a run that has passed over no batches.
    """

    def __init__(self, inner: BatchStream, hooks: Hooks) -> None:
        self._inner = inner
        self._hooks = hooks

    @property
    def threads(self) -> int:
        """Return how many threads read for the batches."""
        return self._inner.threads

    @threads.setter
    def threads(self, threads: int) -> None:
        self._inner.threads = threads

    @property
    def max_threads(self) -> int:
        """Return how many threads would never wait for each other."""
        return self._inner.max_threads

    def batches(self, cursor: Cursor) -> Generator[Batch]:
        """Yield the batches that follow ``cursor``."""
        before = cursor.samples
        for batch in self._inner.batches(cursor):
            step = batch.cursor.samples // max(1, batch.cursor.samples - before)
            before = batch.cursor.samples
            for ask in self._hooks.before_batch:
                ask(step)
            yield batch
