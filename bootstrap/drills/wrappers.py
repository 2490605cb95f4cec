"""Ports that misbehave when they are told to: what drills put in the place of those of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, SupportsFloat, final

from typing_extensions import override

from ports.optimizer import Hardware, Trainable, Update
from ports.state_store import CheckpointInfo, Loaded, Rejected, StateStore, open_plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from pathlib import Path
    from types import TracebackType

    from application.feed import BatchStream
    from domain.batch import Batch
    from domain.cursor import Cursor
    from domain.retention import WayBack
    from domain.sampling import Sampling
    from ports.state_store import JoinedPart, OpenFile, Snapshot, StatePart


@final
@dataclass(slots=True)
class Hooks:
    """What is asked at places of a run, and may raise or take its time.

    ``before_part`` gets the step and the rows of a micro-batch, ``loss_told`` the step, the samples up to the batch's
    end and the loss, and returns the loss to tell, the others get a step.
    """

    before_part: list[Callable[[int, int], object]] = field(default_factory=list)
    loss_told: list[Callable[[int, int, SupportsFloat], SupportsFloat]] = field(default_factory=list)
    before_apply: list[Callable[[int], object]] = field(default_factory=list)
    before_save: list[Callable[[int], object]] = field(default_factory=list)
    before_batch: list[Callable[[int], object]] = field(default_factory=list)


@final
class FaultyTrainable(Trainable):
    """Trains as ``inner`` does, and asks ``hooks`` on the way."""

    def __init__(self, inner: Trainable, hooks: Hooks) -> None:
        self.inner = inner
        self.hooks = hooks

    @property
    @override
    def hardware(self) -> Hardware:
        return self.inner.hardware

    @property
    @override
    def is_retry_safe(self) -> bool:
        return self.inner.is_retry_safe

    @property
    @override
    def memory_retries(self) -> int:
        return self.inner.memory_retries

    @property
    @override
    def is_sharded(self) -> bool:
        return self.inner.is_sharded

    @property
    @override
    def num_positions(self) -> int | None:
        return self.inner.num_positions

    @override
    def memory_bytes(self) -> int:
        return self.inner.memory_bytes()

    @override
    def update(self, *, step: int, learning_rate: float) -> Update:
        return _FaultyUpdate(self, self.inner.update(step=step, learning_rate=learning_rate), step)

    @override
    def evaluate(self, batch: Batch) -> SupportsFloat:
        return self.inner.evaluate(batch)

    @override
    def sum_over_ranks(self, losses: Sequence[SupportsFloat]) -> Sequence[SupportsFloat]:
        return self.inner.sum_over_ranks(losses)

    @override
    def generate(self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int) -> Sequence[int]:
        return self.inner.generate(prompt, sampling, end_of_text=end_of_text)

    @override
    def stream(
        self, prompt: Sequence[int], sampling: Sampling, *, end_of_text: int, tell: Callable[[int], object]
    ) -> None:
        self.inner.stream(prompt, sampling, end_of_text=end_of_text, tell=tell)

    @override
    def capture(self, *, copy: bool = True) -> Sequence[StatePart | JoinedPart]:
        return self.inner.capture(copy=copy)

    @override
    def restore(self, folder: Path, *, weights_only: bool = False, open_file: OpenFile = open_plainly) -> None:
        self.inner.restore(folder, weights_only=weights_only, open_file=open_file)


@final
class _FaultyUpdate(Update):
    def __init__(self, trainable: FaultyTrainable, inner: Update, step: int) -> None:
        self._trainable = trainable
        self._inner = inner
        self._step = step

    @override
    def accumulate(self, part: Batch, *, weight: float, last: bool) -> SupportsFloat:
        for ask in self._trainable.hooks.before_part:
            ask(self._step, part.num_rows)
        loss = self._inner.accumulate(part, weight=weight, last=last)
        for tell in self._trainable.hooks.loss_told:
            loss = tell(self._step, part.cursor.samples, loss)
        return loss

    @override
    def apply(self) -> SupportsFloat:
        for ask in self._trainable.hooks.before_apply:
            ask(self._step)
        return self._inner.apply()

    @override
    def __enter__(self) -> Self:
        self._inner.__enter__()
        return self

    @override
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)


@final
class FaultyStateStore(StateStore):
    """Keeps what ``inner`` keeps, and asks ``hooks`` before each save."""

    def __init__(self, inner: StateStore, hooks: Hooks) -> None:
        self._inner = inner
        self._hooks = hooks

    @property
    @override
    def takes_shares(self) -> bool:
        return self._inner.takes_shares

    @override
    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        for ask in self._hooks.before_save:
            ask(snapshot.progress.step)
        return self._inner.save(snapshot)

    @override
    def contribute(self, snapshot: Snapshot) -> None:
        self._inner.contribute(snapshot)

    @override
    def load(self, *, at_most: int | None = None) -> Loaded:
        return self._inner.load(at_most=at_most)

    @override
    def restore(self, into: Callable[[Path, OpenFile], object], *, at_most: int | None = None) -> Loaded:
        return self._inner.restore(into, at_most=at_most)

    @override
    def supersede(self, step: int) -> None:
        self._inner.supersede(step)

    @override
    def list(self) -> Sequence[CheckpointInfo]:
        return self._inner.list()

    @override
    def tidy(self) -> None:
        self._inner.tidy()

    @override
    def spare(self, way_back: WayBack) -> None:
        self._inner.spare(way_back)

    @override
    def scrub(self) -> Sequence[Rejected]:
        return self._inner.scrub()

    @override
    def flush(self) -> None:
        self._inner.flush()


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
    def most_threads(self) -> int:
        """Return how many threads would never wait for each other."""
        return self._inner.most_threads

    def batches(self, cursor: Cursor) -> Generator[Batch]:
        """Yield the batches that follow ``cursor``."""
        before = cursor.samples
        for batch in self._inner.batches(cursor):
            step = batch.cursor.samples // max(1, batch.cursor.samples - before)
            before = batch.cursor.samples
            for ask in self._hooks.before_batch:
                ask(step)
            yield batch
