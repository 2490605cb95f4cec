"""Saves checkpoints, reports when they are durable, and restores them."""

from __future__ import annotations

import json
import logging
import math
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, final
from uuid import uuid4

from holdfast.application.thread_pool import BackgroundWorker
from holdfast.domain.checkpoints.reproducibility import Reproducibility, changes, reproducibility_of
from holdfast.domain.checkpoints.tiers import Tier
from holdfast.domain.commands import AcknowledgeSave, SaveReason, from_json, to_json
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import StateError
from holdfast.domain.events import (
    CheckpointFailed,
    CheckpointMoved,
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStarted,
    ContractWeakened,
)
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import JoinedPart, Loaded, Snapshot, StateShare

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from holdfast.application.inbox import Inbox
    from holdfast.ports.event_bus import EventBus
    from holdfast.ports.optimizer import Trainable
    from holdfast.ports.process_group import ProcessGroup
    from holdfast.ports.state_store import CheckpointInfo, OpenFile, StatePart, StateStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Pending:
    """A save that has been captured and is not yet known to be durable."""

    number: int
    progress: Progress
    reason: SaveReason
    stall_seconds: float = 0.0


@final
class Checkpointer:
    """Saves a trainable to a state store and restores it; ``parts`` (the tokenizer) go into each checkpoint too.

    All ranks of ``group`` call each method. The first rank writes and quarantines, the other ranks read the result; if
    the state is sharded, each rank writes its own shards, and the first one assembles the checkpoint. A periodic save
    blocks training only while it captures: a thread makes it durable and posts an ``AcknowledgeSave`` to ``inbox``.
    Every other save blocks until durable, so tensors in host memory are written in place and no copy is kept. Only one
    save is under way at a time. ``memory`` decides whether the copy fits beside the next step or training waits for the
    disk, and holds the copy that this process may roll back to. ``conditions`` are the facts that a bitwise
    resume depends on: a resume under different ones is reported, and recorded in all later checkpoints.
    """

    def __init__(
        self,
        store: StateStore,
        trainable: Trainable,
        bus: EventBus,
        group: ProcessGroup,
        inbox: Inbox,
        *,
        parts: Sequence[StatePart] = (),
        conditions: Mapping[str, str] | None = None,
        memory: MemoryTier | None = None,
    ) -> None:
        self._store = store
        self._trainable = trainable
        self._bus = bus
        self._group = group
        self._parts = parts
        self._conditions = conditions or {}
        self._contract = reproducibility_of(self._conditions)
        self._memory = memory or MemoryTier()
        self._restorer = Restorer(store, trainable, bus, group, self._memory)
        self._writer = AsyncCheckpointWriter(store, inbox)
        self._pending: _Pending | None = None
        self._durable_step = 0
        self._number = 0
        self._left_id = ""  # the same on all ranks of this start

    def restore_latest(self) -> Progress:
        """Restore the newest valid checkpoint; return its progress, or that of a new run if there is none.

        Incomplete saves and deletions of earlier starts are cleaned up. Raises ``StateError`` if another rank finds a
        checkpoint of another step, and if the store does not support the saves to come.
        """
        self._writer.check_supports(self._trainable)
        self._left_id = self._group.gather(uuid4().hex)[0]
        if self._group.rank == 0:
            self._complete_shares()
        info = self._restorer.from_store()
        if self._group.rank == 0:
            self._store.tidy()
        if info is None:
            return Progress()
        self._durable_step = info.progress.step
        self._contract = max(self._contract, info.contract, key=list(Reproducibility).index)
        if differing := changes(info.conditions, self._conditions):
            self.weaken_reproducibility(info.progress, differing)
        return info.progress

    def roll_back(self, step: int) -> Progress | None:
        """Restore the newest state of ``step`` or before, as ``Restorer.roll_back_to`` does; return its progress."""
        self._settle()
        progress = self._restorer.roll_back_to(step)
        if progress is not None:
            self._durable_step = min(self._durable_step, progress.step)
        return progress

    def drop_memory_copy(self) -> None:
        """Free the copy in memory if memory is nearly full, and report it; a copy that is not durable yet stays."""
        if (step := self._memory.drop_if_tight(self._durable_step)) is not None:
            self._bus.publish(CheckpointMoved(step, Tier.MEMORY, Tier.DISK, "memory is nearly full"))

    def weaken_reproducibility(self, progress: Progress, reasons: Sequence[str]) -> None:
        """Record in all later checkpoints that the run is equal up to rounding only; reported once."""
        if self._contract is Reproducibility.NUMERICAL:
            return
        self._contract = Reproducibility.NUMERICAL
        self._bus.publish(ContractWeakened(progress, reasons))

    def save(self, progress: Progress, reason: SaveReason, *, evaluation_loss: float | None = None) -> None:
        """Capture ``progress`` and make it durable, unless it is already durable or nothing was trained yet.

        Returns once it is captured if ``reason`` is periodic, otherwise once it is durable; then raises ``StateError``
        if that fails. ``evaluation_loss`` is the loss in nats a token evaluated at this step; a loss that is not finite
        counts as none.
        """
        started = time.perf_counter()
        self._settle()
        if progress.step == self._durable_step:
            return
        if self._restorer.is_unfinished:
            msg = "a roll-back was interrupted, so the state in memory is inconsistent and was not saved"
            raise StateError(msg)
        self._bus.publish(CheckpointStarted(progress, reason))
        self._memory.drop_durable(self._durable_step)
        try:
            snapshot = self._captured(progress, reason, evaluation_loss)
        except StateError:  # an update was interrupted: the last complete step may still be in memory
            self._save_held()
            raise
        if reason is SaveReason.PERIODIC:
            self._memory.hold(snapshot)
        self._begin(snapshot, reason, started)
        if reason is not SaveReason.PERIODIC or self._must_wait():
            problem = self._finish()
            if reason is not SaveReason.PERIODIC:
                if problem is not None:
                    raise StateError(problem)
                self._memory.clear()  # a copy whose own save failed is older than this checkpoint

    def leave_share(self, progress: Progress) -> None:
        """Make this rank's part of ``progress`` durable without the other ranks, which may be gone.

        The next start makes a checkpoint of the parts of all ranks if each has left its own of this step. Raises
        ``StateError`` if the part cannot be stored.
        """
        if progress.step == self._durable_step or self._restorer.is_unfinished or not self._store.keeps_shares:
            return
        share = StateShare(f"{self._left_id}-{progress.step}", self._group.rank, self._group.size, 0.0)
        parts = (*self._trainable.capture(copy=False), *(self._parts if self._group.rank == 0 else ()))
        self._store.leave_share(
            Snapshot(progress, SaveReason.EXCEPTION, parts, None, self._contract, self._conditions, share=share)
        )
        _log.warning("rank %d left its share of the state after step %d", self._group.rank, progress.step)

    def leave_group(self, alone: ProcessGroup) -> None:
        """Save from now on in ``alone``, a group of this rank, which holds the whole state: the others may be gone."""
        self._group = alone

    def acknowledge(self, outcome: AcknowledgeSave) -> None:
        """Publish the outcome of the save under way, unless ``outcome`` belongs to a save that is already settled."""
        pending = self._pending
        if pending is None or pending.number != outcome.number:
            return
        self._pending = None
        self._writer.give_up()
        if outcome.problem is not None:
            self._bus.publish(CheckpointFailed(pending.progress, pending.reason, outcome.problem))
            return
        self._durable_step = outcome.step
        stall = min(pending.stall_seconds, outcome.seconds)
        self._bus.publish(CheckpointSaved(pending.progress, outcome.location, pending.reason, outcome.seconds, stall))
        self.drop_memory_copy()

    def flush(self) -> None:
        """Wait until every save is durable, or is known to have failed."""
        self._settle()
        self._writer.close()
        if self._group.rank == 0:
            self._store.flush()
        self._group.barrier()

    def close(self) -> None:
        """Wait for the save under way and publish its outcome, on this rank alone: the other ranks may be gone.

        The copy in memory is freed, as no roll-back can follow.
        """
        self._writer.close()
        if self._pending is not None and self._writer.outcome is not None:
            self.acknowledge(self._writer.outcome)
        self._memory.clear()

    def _complete_shares(self) -> None:
        """Make a checkpoint of what the ranks of a failed start left; if it cannot be made, an older one counts."""
        try:
            info = self._store.complete_shares(self._group.size, self._joined_parts)
        except StateError as problem:
            _log.warning("the shares of a failed run are not used: %s", problem)
            return
        if info is not None:
            reason = "each rank had left its share when the run failed"
            self._bus.publish(CheckpointMoved(info.progress.step, Tier.MEMORY, Tier.DISK, reason))

    def _joined_parts(self) -> Sequence[JoinedPart]:
        return [part for part in self._trainable.capture(copy=False) if isinstance(part, JoinedPart)]

    def _captured(self, progress: Progress, reason: SaveReason, evaluation_loss: float | None) -> Snapshot:
        records = self._group.gather(json.dumps({"cursor": progress.cursor.to_json(), "save_id": uuid4().hex}))
        gathered = [json.loads(record) for record in records]
        cursor = Cursor.join([Cursor.from_json(record["cursor"]) for record in gathered])
        share = self._writer.share(gathered[0]["save_id"], self._group) if self._trainable.is_sharded else None
        captured = self._trainable.capture(copy=reason is SaveReason.PERIODIC)
        parts = (*captured, *(self._parts if self._group.rank == 0 else ()))
        loss = evaluation_loss if evaluation_loss is not None and math.isfinite(evaluation_loss) else None
        progress = replace(progress, cursor=cursor)
        return Snapshot(progress, reason, parts, loss, self._contract, self._conditions, share=share)

    def _begin(self, snapshot: Snapshot, reason: SaveReason, started: float) -> None:
        """Queue ``snapshot`` for the thread of the first rank, or of each rank that holds shards."""
        self._number += 1
        self._pending = _Pending(self._number, snapshot.progress, reason, time.perf_counter() - started)
        if self._group.rank == 0 or snapshot.share is not None:
            self._writer.submit(snapshot, self._number, started)

    def _finish(self) -> str | None:
        """Wait for the save that was just begun; return the problem if it failed."""
        assert self._pending is not None
        self._pending = replace(self._pending, stall_seconds=math.inf)
        return self._settle()

    def _save_held(self) -> None:
        held = self._memory.newest
        if held is None or held.progress.step == self._durable_step:
            return
        self._begin(replace(held, reason=SaveReason.EXCEPTION), SaveReason.EXCEPTION, time.perf_counter())
        self._finish()

    def _must_wait(self) -> bool:
        """Return whether a rank that holds a copy has no room for it beside the next step."""
        holds_copy = self._group.rank == 0 or self._trainable.is_sharded
        return "wait" in self._group.gather("wait" if holds_copy and not self._memory.may_overlap() else "")

    def _settle(self) -> str | None:
        """Wait for the save under way, if there is one, and publish its outcome; return the problem if it failed."""
        if self._pending is None:
            return None
        text = ""
        if self._group.rank == 0:
            text = json.dumps(to_json(self._writer.settle()))
        outcome = from_json(json.loads(self._group.gather(text)[0]))
        assert isinstance(outcome, AcknowledgeSave)
        self.acknowledge(outcome)
        return outcome.problem


@final
class Restorer:
    """Restores ``trainable`` from ``store`` or ``memory``; all ranks of ``group`` call each method.

    A checkpoint is verified while it is read. The first rank reads it before the other ranks, since it quarantines
    damaged checkpoints and fetches archived ones. A checkpoint that one rank rejects is used by none.
    ``is_unfinished`` says that a restore is under way or was interrupted by an error: the state is inconsistent then.
    """

    def __init__(
        self, store: StateStore, trainable: Trainable, bus: EventBus, group: ProcessGroup, memory: MemoryTier
    ) -> None:
        self._store = store
        self._trainable = trainable
        self._bus = bus
        self._group = group
        self._memory = memory
        self.is_unfinished = False

    def from_store(self, *, at_most: int | None = None) -> CheckpointInfo | None:
        """Restore the newest valid checkpoint, of step ``at_most`` or before; return it, None if there is none.

        Raises ``StateError`` if another rank finds a checkpoint of another step or cannot restore it, and if all turn
        out to be damaged after part of the state has been overwritten.
        """
        if self._group.size > 1:
            loaded = self._restore_together(at_most)
        else:
            loaded = self._restore(at_most)
            if loaded.info is None and self.is_unfinished:
                raise _lost(rejected.name for rejected in loaded.rejected)
        if loaded.info is not None:
            self.is_unfinished = False
        return loaded.info

    def from_memory(self, step: int) -> Progress | None:
        """Restore the copy in memory if it is of ``step`` or before; return its progress, None if it was not restored.

        Only for a process that trains alone, as a copy has the state of one rank. The restored state equals that of the
        checkpoint bit for bit.
        """
        held = self._memory.newest
        if held is None or held.progress.step > step:
            return None
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(self._memory.unpacked())
            except StateError as problem:
                _log.warning("the copy in memory cannot be used, so the checkpoint on disk is: %s", problem)
                return None
            with self._begun():
                self._trainable.restore(folder)
        return held.progress

    def roll_back_to(self, step: int) -> Progress | None:
        """Restore the newest state of ``step`` or before and supersede later checkpoints; return its progress.

        Returns None, with nothing changed, if there is none.
        """
        progress = self.from_memory(step) if self._group.size == 1 else None
        if progress is None:
            info = self.from_store(at_most=step)
            if info is None:
                return None
            self._memory.clear()  # its copy may be of a step that is rolled back
            progress = info.progress
        with self._begun():
            if self._group.rank == 0:
                self._store.supersede(progress.step)
        return progress

    def _take_over(self, folder: Path, open_file: OpenFile) -> None:
        self.is_unfinished = True
        self._trainable.restore(folder, open_file=open_file)

    def _restore(self, at_most: int | None) -> Loaded:
        loaded = self._store.restore(self._take_over, at_most=at_most)
        for rejected in loaded.rejected:
            self._bus.publish(CheckpointRejected(rejected.name, rejected.reason, rejected.location))
        return loaded

    def _restore_together(self, at_most: int | None) -> Loaded:
        """Restore the same checkpoint on each rank, an older one than any that a rank rejects."""
        rejected: list[str] = []
        while True:
            loaded, problem = self._restore_in_turn(at_most)
            rejected += [each.name for each in loaded.rejected]
            step = 0 if loaded.info is None else loaded.info.progress.step
            own = _RankReport(step, rejected, problem, self.is_unfinished)
            reports = [_RankReport(**json.loads(text)) for text in self._group.gather(json.dumps(asdict(own)))]
            if problems := [f"rank {rank}: {report.problem}" for rank, report in enumerate(reports) if report.problem]:
                raise StateError(problem or problems[0])
            steps = [report.step for report in reports]
            if 0 in steps and any(report.is_unfinished and report.rejected for report in reports):
                raise _lost(name for report in reports for name in report.rejected)
            if len(set(steps)) == 1:
                return loaded
            if at_most == min(steps) or not any(report.rejected for report in reports):
                listed = ", ".join(map(str, steps))
                msg = f"the ranks found checkpoints of steps {listed}: run.dir must be one folder of all hosts"
                raise StateError(msg)
            at_most = min(steps)

    def _restore_in_turn(self, at_most: int | None) -> tuple[Loaded, str]:
        """Restore as ``_restore`` does, on the first rank first; return the result and the problem, if any."""
        loaded, problem = Loaded(None, None), ""
        if self._group.rank > 0:
            self._group.barrier()
        try:
            loaded = self._restore(at_most)
        except StateError as error:
            problem = str(error)
        if self._group.rank == 0:
            self._group.barrier()
        return loaded, problem

    @contextmanager
    def _begun(self) -> Iterator[None]:
        self.is_unfinished = True
        yield
        self.is_unfinished = False


@dataclass(frozen=True, slots=True)
class _RankReport:
    """The report of a rank: the step it restored (0 if none), the checkpoints it rejected, and the problem, if any."""

    step: int
    rejected: Sequence[str]
    problem: str
    is_unfinished: bool


def _lost(names: Iterable[str]) -> StateError:
    listed = ", ".join(dict.fromkeys(names)) or "the checkpoints"
    msg = (
        f"{listed} failed verification while being loaded, and no other checkpoint is left: they were "
        "moved to quarantine, and the same command starts again at step 0"
    )
    return StateError(msg)


_CLOSING_SECONDS = 30.0  # for the shards of other ranks, which may be dead, after this rank has left the loop


@final
class AsyncCheckpointWriter:
    """Writes snapshots to ``store`` in a thread, and posts an ``AcknowledgeSave`` for each to ``inbox``.

    ``outcome`` is the outcome of the last save. Nothing is posted for shards of another rank's save, as that rank
    reports it.
    """

    def __init__(self, store: StateStore, inbox: Inbox) -> None:
        self._store = store
        self._inbox = inbox
        self._thread = BackgroundWorker("checkpoints")
        self._awaited = ""
        self._patient_until = math.inf
        self.outcome: AcknowledgeSave | None = None

    def check_supports(self, trainable: Trainable) -> None:
        """Raise ``StateError`` if the state of ``trainable`` is sharded and the store does not support that."""
        if trainable.is_sharded and not self._store.takes_shares:
            msg = "the state is sharded over ranks, which this state store does not support: set state_store.kind=disk"
            raise StateError(msg)

    def share(self, save_id: str, group: ProcessGroup) -> StateShare:
        """Wait for the end of the previous save; return this rank's share of the save ``save_id``."""
        self._thread.settle(None)
        self._awaited = save_id
        patience = group.timeout_seconds / 2  # the other ranks may be waiting in a collective
        return StateShare(save_id, group.rank, group.size, patience, lambda: self._is_over(save_id))

    def submit(self, snapshot: Snapshot, number: int, started: float) -> None:
        """Queue ``snapshot`` as the save ``number``, which began at ``started`` (``perf_counter`` seconds)."""
        if snapshot.share is not None and snapshot.share.rank > 0:
            self._thread.submit(lambda: self._store.contribute(snapshot))
        else:
            self._thread.submit(lambda: self._write(snapshot, number, started))

    def settle(self) -> AcknowledgeSave:
        """Wait for all submitted saves; return the outcome of the last one."""
        self._thread.settle(None)
        assert self.outcome is not None
        return self.outcome

    def give_up(self) -> None:
        """Abandon an unfinished sharded save, whose outcome is already known."""
        self._awaited = ""

    def close(self) -> None:
        """Wait for all submitted saves, and end the thread."""
        self._patient_until = time.monotonic() + _CLOSING_SECONDS
        self._thread.close(None)

    def _is_over(self, save_id: str) -> bool:
        return self._awaited != save_id or time.monotonic() > self._patient_until

    def _write(self, snapshot: Snapshot, number: int, started: float) -> None:
        step, location, problem = snapshot.progress.step, "", None
        try:
            location = self._store.save(snapshot).location
        except StateError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001  reported, and raised by ``save`` where training waits for it
            problem = f"step {step} could not be saved: {type(error).__name__}: {error}"
        self.outcome = AcknowledgeSave(number, step, location, time.perf_counter() - started, problem)
        self._inbox.post(self.outcome)


@final
class MemoryTier:
    """Limits the copies of the state in host memory: during the next step, and after their save.

    ``may_overlap`` is asked after each capture whether there is room for the copy beside the next step. With
    ``unpack``, a context manager that provides a folder of a snapshot's files, the last copy is kept after its save
    too, until ``is_tight`` says that memory is nearly full.
    """

    def __init__(
        self,
        *,
        may_overlap: Callable[[], bool] = lambda: True,
        is_tight: Callable[[], bool] = lambda: False,
        unpack: Callable[[Snapshot], AbstractContextManager[Path]] | None = None,
    ) -> None:
        self.may_overlap = may_overlap
        self._is_tight = is_tight
        self._unpack = unpack
        self._snapshot: Snapshot | None = None

    @property
    def newest(self) -> Snapshot | None:
        """Return the snapshot in memory, None if there is none."""
        return self._snapshot

    def hold(self, snapshot: Snapshot) -> None:
        """Hold ``snapshot`` in place of the previous copy, or no copy if memory is nearly full."""
        self._snapshot = None if self._unpack is None or self._is_tight() else snapshot

    def drop_durable(self, durable_step: int) -> None:
        """Free a copy of ``durable_step`` before the next one is captured, so that there are never two copies."""
        if self._snapshot is not None and self._snapshot.progress.step == durable_step:
            self._snapshot = None

    def drop_if_tight(self, durable_step: int) -> int | None:
        """Free a copy of ``durable_step`` if memory is tight; return its step, None if nothing was freed."""
        if self._snapshot is None or self._snapshot.progress.step != durable_step or not self._is_tight():
            return None
        self._snapshot = None
        return durable_step

    def clear(self) -> None:
        """Free the copy, if there is one."""
        self._snapshot = None

    def unpacked(self) -> AbstractContextManager[Path]:
        """Return a context manager for a folder of the snapshot's files; raises ``StateError`` if there is no room."""
        assert self._snapshot is not None
        assert self._unpack is not None
        return self._unpack(self._snapshot)
