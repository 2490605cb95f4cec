"""The faults that each drill injects into a run."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsFloat, cast, final

from typing_extensions import override

from holdfast.bootstrap.adapter_choice.part_overrides import Around
from holdfast.bootstrap.adapter_choice.process_group import is_first_rank
from holdfast.bootstrap.verification.fault_catalog import BUSY_ANSWERS, SHORT_STEPS, SLOW_SAVE_SECONDS
from holdfast.domain.errors import NonFiniteGradients, OutOfMemory, StateError
from holdfast.ports.forwarding.optimizer import ForwardingTrainable, ForwardingUpdate
from holdfast.ports.forwarding.state_store import ForwardingStateStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from pathlib import Path

    from holdfast.application.data.feed import BatchStream
    from holdfast.bootstrap.verification.fault_catalog import Planned
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.data.cursor import Cursor
    from holdfast.ports.optimizer import Trainable, Update
    from holdfast.ports.state_store import CheckpointInfo, Snapshot, StateStore

_SPIKE = 100.0


class WorkerDied(BaseException):
    """The end of a thread that reads data, as after the panic of a library."""


@final
@dataclass(slots=True)
class Fault:
    """A fault that occurs once in a run, over all its processes: at ``step``, marked by the file ``happened``."""

    step: int
    happened: Path
    length: int = 1
    most_rows: int | None = None
    has_begun: bool = False

    def comes(self, step: int) -> bool:
        """Return whether the fault occurs now, at ``step``."""
        if step < self.step or self.happened.exists():
            return False
        self.happened.touch()
        return True

    def kill(self, step: int) -> None:
        """Kill this process at once."""
        if self.comes(step):
            os.kill(os.getpid(), signal.SIGKILL)

    def ask_to_stop(self, step: int) -> None:
        """Send this process the signal of a scheduler."""
        if self.comes(step):
            os.kill(os.getpid(), signal.SIGTERM)

    def hang(self, step: int) -> None:
        """Hang, but not in the first step of a process, which may take long anyway."""
        if self.has_begun and self.comes(step):
            while True:
                time.sleep(1.0)
        self.has_begun = True

    def run_short(self, step: int, rows: int) -> None:
        """Leave memory for half the rows for some steps; raises ``OutOfMemory`` for more rows."""
        if self.comes(step):
            self.step, self.most_rows = step, rows // 2
        if self.most_rows is None or step >= self.step + SHORT_STEPS or rows <= self.most_rows:
            return
        self.most_rows = self.most_rows or None  # a single row is refused but once
        msg = f"no memory for {rows} rows (drill)"
        raise OutOfMemory(msg)

    def spoil(self, step: int) -> None:
        """Raise ``NonFiniteGradients`` whenever the step is taken."""
        if step == self.step:
            self.happened.touch()
            msg = f"the gradients of step {step} are not finite (drill)"
            raise NonFiniteGradients(msg)

    def exaggerate(self, step: int, samples: int, loss: SupportsFloat) -> SupportsFloat:
        """Return a loss that is far too high for a few batches, whenever they are taken; they end at ``samples``."""
        spoilt = self.happened.read_text().split() if self.happened.exists() else []
        if step >= self.step and len(spoilt) < self.length and str(samples) not in spoilt:
            spoilt.append(str(samples))
            self.happened.write_text(" ".join(spoilt))
        return cast("Any", loss) * _SPIKE if str(samples) in spoilt else loss

    def refuse(self, step: int) -> None:
        """Raise ``StateError``, as if the disk had no room for a checkpoint."""
        if self.comes(step):
            msg = f"checkpoint {step} cannot be written, no space left on the device (drill): free some space there"
            raise StateError(msg)

    def delay(self, step: int) -> None:
        """Delay a checkpoint by some seconds."""
        if self.comes(step):
            time.sleep(SLOW_SAVE_SECONDS)

    def die_reading(self, step: int) -> None:
        """Raise ``WorkerDied`` in the thread that prefetches."""
        if self.comes(step):
            raise WorkerDied


_PLANT: Mapping[str, Callable[[Hooks, Fault], None]] = {
    "kill": lambda hooks, fault: hooks.before_apply.append(fault.kill),
    "sigterm": lambda hooks, fault: hooks.before_apply.append(fault.ask_to_stop),
    "oom": lambda hooks, fault: hooks.before_part.append(fault.run_short),
    "nan": lambda hooks, fault: hooks.before_apply.append(fault.spoil),
    "spike": lambda hooks, fault: hooks.adjust_loss.append(fault.exaggerate),
    "full-disk": lambda hooks, fault: hooks.before_save.append(fault.refuse),
    "slow-disk": lambda hooks, fault: hooks.before_save.append(fault.delay),
    "dead-worker": lambda hooks, fault: hooks.before_batch.append(fault.die_reading),
    "hang": lambda hooks, fault: hooks.before_apply.append(fault.hang),
}


def faults_of(planned: Sequence[Planned], marker: Callable[[int], Path]) -> dict[str, Any]:
    """Return the wrappers of a run's parts, by part name, that cause the faults of ``planned``.

    ``marker`` names the file that marks that the fault at a place in ``planned`` has happened.
    """
    if not planned or not is_first_rank():
        return {}
    hooks = Hooks()
    busy([marker(place) for place, fault in enumerate(planned) if fault.drill == "s3-503"])
    for place, fault in enumerate(planned):
        if fault.drill != "s3-503":
            _PLANT[fault.drill](hooks, Fault(fault.step, marker(place), fault.length))
    return {
        "trainable": Around(lambda trainable: FaultyTrainable(trainable, hooks)),
        "state_store": Around(lambda store: FaultyStateStore(store, hooks)),
        "trained_stream": Around(lambda stream: FaultyStream(stream, hooks)),
    }


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


_CALM_ANSWERS = 6


def busy(happened: Sequence[Path]) -> None:
    """Make requests of this process to S3 fail with 503, a number of them for each file of ``happened`` not there yet.

    Between two series of failures some requests succeed, so that no client gives up. All reads from S3 go through
    s3fs, whose class is replaced in fsspec's registry.
    """
    pending = [path for path in happened if not path.exists()]
    if not pending:
        return
    import fsspec
    from botocore.exceptions import ClientError
    from s3fs import S3FileSystem
    from s3fs.errors import translate_boto_error

    answer = {"Error": {"Code": "SlowDown", "Message": "drill"}, "ResponseMetadata": {"HTTPStatusCode": 503}}
    left = [place for path in pending for place in (*[path] * BUSY_ANSWERS, *[None] * _CALM_ANSWERS)]

    class BusyS3FileSystem(S3FileSystem):  # type: ignore[misc]  # it has no types
        """Refuses the requests that are next in ``left`` with the error of a busy server."""

        async def _call_s3(self, method: str, *parts: Any, **options: Any) -> Any:
            happened_now = left.pop(0) if left else None
            if happened_now is not None:
                happened_now.touch()
                raise translate_boto_error(ClientError(answer, method))
            return await super()._call_s3(method, *parts, **options)

    fsspec.register_implementation("s3", BusyS3FileSystem, clobber=True)
