"""Checkpoints on disk, with copies in an archive that outlives the machine."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.shared.tensor_state.file_parts import read_whole
from holdfast.adapters.state_store.archive.lease import held
from holdfast.adapters.state_store.tier_migration import TierMigrator
from holdfast.domain.checkpoints.retention import Role
from holdfast.domain.checkpoints.tiers import CopyState, Phase, advanced
from holdfast.domain.commands import AcknowledgeArchive
from holdfast.domain.errors import StateError
from holdfast.domain.fault_tolerance.health import Health
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import CheckpointInfo, Loaded, RejectedCheckpoint, Snapshot, StateStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, MutableSequence, Sequence
    from pathlib import Path

    from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
    from holdfast.adapters.state_store.archive.lease import ArchiveLease
    from holdfast.adapters.state_store.disk import DiskStateStore
    from holdfast.domain.checkpoints.retention import Retention, RollBackFloor
    from holdfast.domain.commands import Command
    from holdfast.ports.state_store import JoinedPart, OpenFile

_log = logging.getLogger(__name__)
_PARTING_SECONDS = 5.0  # for a file in transfer when the archive is closed


@final
class TieredStateStore(StateStore):
    """Stores checkpoints on ``disk``, and copies in ``archive`` subject to ``retention``; pinned ones stay in both.

    ``save`` returns once the checkpoint is durable on disk. Meanwhile a thread archives the newest one, or each one in
    the anneal (``phase_of``), and posts the result to ``tell``. A failed copy is not retried; the next checkpoint is
    copied. ``load`` first fetches archived checkpoints newer than the newest valid one on disk. Copies of checkpoints
    that the run has rolled back are not fetched but deleted. ``moves`` frees space on disk and in the archive, but not
    between a load and the next save. The archive is used in this way only within ``archiving``, in the run's one
    writing process. ``flush`` waits ``patience`` seconds for the archive; the next start continues unfinished copies.
    """

    def __init__(
        self,
        disk: DiskStateStore,
        archive: CheckpointArchive,
        lease: ArchiveLease,
        retention: Retention,
        *,
        moves: TierMigrator | None = None,
        tell: Callable[[Command], object],
        patience: float,
        phase_of: Callable[[Progress], Phase] = lambda _: Phase.STEADY,
    ) -> None:
        self._disk = disk
        self._archive = archive
        self._lease = lease
        self._retention = retention
        self._tell = tell
        self._patience = patience
        self._migrator = moves or TierMigrator(disk, archive, tell=tell)
        self.phase_of = phase_of
        self._phase = Phase.RECOVERY
        self._queue = UploadQueue()
        self._rejected: Sequence[RejectedCheckpoint] = ()
        self._damaged: set[int] = set()
        self._left_behind: int | None = None
        self._archive_free = threading.Lock()  # the archive serves one thread at a time

    @contextlib.contextmanager
    def archiving(self, should_stop: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Write to the archive within the block, as its only writer; an upload in progress at its end is aborted.

        Waits for the lease of a writer that may have died. Raises ``StateError`` if ``should_stop`` ends the wait,
        another process writes to the archive, or it cannot be reached.
        """
        if not self._lease.acquire(should_stop):
            msg = (
                f"{self._archive.name} was still leased by another run at the stop: run the same command to wait again"
            )
            raise StateError(msg)
        with held(self._lease):
            if self._disk.guard.allows(Role.DELETE):
                self._archive.sweep()
            self._queue.open()
            thread = threading.Thread(target=self._work, name="archive", daemon=True)
            thread.start()
            try:
                yield
            finally:
                self._queue.close()
                thread.join(_PARTING_SECONDS)

    @override
    def save(self, snapshot: Snapshot) -> CheckpointInfo:
        info = self._disk.save(snapshot)
        self._phase = self.phase_of(snapshot.progress)
        self._want(info.progress.step)
        return info

    @property
    @override
    def keeps_shares(self) -> bool:
        return self._disk.keeps_shares

    @property
    @override
    def takes_shares(self) -> bool:
        return True

    @override
    def contribute(self, snapshot: Snapshot) -> None:
        self._disk.contribute(snapshot)

    @override
    def leave_share(self, snapshot: Snapshot) -> None:
        self._disk.leave_share(snapshot)

    @override
    def complete_shares(self, num_ranks: int, joined: Callable[[], Sequence[JoinedPart]]) -> CheckpointInfo | None:
        return self._disk.complete_shares(num_ranks, joined)

    @override
    def load(self, *, at_most: int | None = None) -> Loaded:
        return self._newest(at_most, lambda: self._disk.load(at_most=at_most))

    @override
    def restore(self, into: Callable[[Path, OpenFile], object], *, at_most: int | None = None) -> Loaded:
        return self._newest(at_most, lambda: self._disk.restore(into, at_most=at_most))

    def _newest(self, at_most: int | None, read: Callable[[], Loaded]) -> Loaded:
        if not self._queue.is_open:
            return read()
        if at_most is not None:
            return self._earlier(at_most, read)
        self._phase = Phase.RECOVERY
        rejected, self._rejected = [*self._rejected], ()
        # newer checkpoints are fetched from the archive before the disk is read
        self._fetch_later_than(next(reversed(self._disk.list()), None), rejected)
        loaded = read()
        rejected += loaded.rejected
        if loaded.rejected and self._fetch_later_than(loaded.info, rejected):
            loaded = read()
            rejected += loaded.rejected
        if loaded.info is not None:
            self._want(loaded.info.progress.step)
        return replace(loaded, rejected=tuple(rejected))

    def _earlier(self, at_most: int, read: Callable[[], Loaded]) -> Loaded:
        loaded = read()
        step, rejected = loaded.info.progress.step if loaded.info else 0, [*loaded.rejected]
        stored = self._disk.list()
        health = stored[-1].progress.health if stored else Health()
        last = at_most if self._left_behind is None else min(at_most, self._left_behind)
        with self._archive_free:
            between = [info for info in self._archive.list() if step < info.progress.step <= last]
            kept = [info for info in between if health.has_kept(info.progress.step, info.progress.health)]
            if not self._migrator.fetch_first(reversed(kept), "a roll-back needs it", self._damaged, rejected):
                return replace(loaded, rejected=tuple(rejected))
        earlier = read()
        return replace(earlier, rejected=(*rejected, *earlier.rejected))

    def recall(self, name: str) -> tuple[Loaded, bytes | None]:
        """Return what the function ``recall`` does; the next load returns the rejected checkpoints too."""
        loaded, found = recall(self, name)
        self._rejected = loaded.rejected
        return loaded, found

    def check_owner(self, run: str | None) -> None:
        """Raise ``StateError`` if the archive holds copies of a run whose id is not ``run``."""
        if self._archive.owner() != run and self._archive.list():
            msg = f"{self._archive.name} holds copies of another run: give this one another archive url or run.name"
            raise StateError(msg)

    def claim(self, run: str) -> None:
        """Reserve the archive for the run with the id ``run``; raises ``StateError`` if it holds another's copies."""
        self.check_owner(run)
        self._archive.claim(run)

    @override
    def supersede(self, step: int) -> None:
        self._disk.supersede(step)
        self._left_behind = step
        self._want(step)

    @override
    def list(self) -> Sequence[CheckpointInfo]:
        return self._disk.list()

    @override
    def tidy(self) -> None:
        self._disk.tidy()

    @override
    def spare(self, floor: RollBackFloor) -> None:
        self._disk.spare(floor)

    @override
    def scrub(self) -> Sequence[RejectedCheckpoint]:
        return self._disk.scrub()

    @override
    def flush(self) -> None:
        self._disk.flush()
        if not self._queue.wait(self._patience):
            _log.warning(
                "the archive is not complete after %.0f s: the next start continues the upload", self._patience
            )

    def _fetch_later_than(self, info: CheckpointInfo | None, rejected: MutableSequence[RejectedCheckpoint]) -> bool:
        """Fetch to the disk the newest copy after ``info`` that verifies; return whether one was fetched."""
        known = Progress() if info is None else info.progress
        later = [info for info in reversed(self._archive.list()) if info.progress.step > known.step]
        kept = [info for info in later if len(info.progress.health.returns) >= len(known.health.returns)]
        if len(kept) < len(later):
            self._left_behind = known.step  # the run has rolled the rest back
        return self._migrator.fetch_first(kept, "the disk has no checkpoint that is as new", self._damaged, rejected)

    def _want(self, step: int) -> None:
        if not self._queue.is_open:
            return
        if is_one_of_all := self._phase is Phase.ANNEAL:
            self._disk.hold(step)
        for given_up in self._queue.want(step, only=not is_one_of_all):
            self._migrator.release(given_up)

    def _work(self) -> None:
        while (step := self._queue.take()) is not None:
            started, state = time.monotonic(), CopyState.FAILED
            try:
                with self._archive_free:
                    self._delete_superseded()
                    state = self._archive_step(step, started)
            except Exception as error:  # noqa: BLE001  no caller waits for this thread: it reports the error
                problem = str(error) if isinstance(error, StateError) else f"{type(error).__name__}: {error}"
                self._tell(AcknowledgeArchive(step, "", time.monotonic() - started, problem))
            finally:
                self._migrator.release(step)
                self._queue.end(step, state)

    def _archive_step(self, step: int, started: float) -> CopyState:
        if not self._disk.hold(step):
            return CopyState.FAILED  # a newer one has replaced it and is queued by now
        if (location := self._archive.put(self._disk.folder_of(step), lambda: not self._queue.is_open)) is None:
            return CopyState.FAILED
        seconds = time.monotonic() - started
        deleted: Sequence[int] = ()
        try:
            if self._phase is not Phase.RECOVERY:
                self._migrator.enforce_disk_budget(self._phase)
                deleted = self._migrator.apply_retention(self._retention, saved=step)
        finally:  # the copy is there, whatever became of the others
            self._tell(AcknowledgeArchive(step, location, seconds, deleted=deleted))
        return CopyState.READY

    def _delete_superseded(self) -> None:
        """Delete the copies of superseded checkpoints, whose names may be needed again."""
        while (step := self._left_behind) is not None:
            self._migrator.delete_superseded(step)
            self._left_behind = None if self._left_behind == step else self._left_behind


def recall(store: StateStore, name: str) -> tuple[Loaded, bytes | None]:
    """Return the newest checkpoint of ``store`` and the verified bytes of its file ``name``, None without a checkpoint.

    Raises ``StateError`` if the checkpoint does not have the file.
    """
    found: list[bytes] = []

    def take(folder: Path, open_file: OpenFile) -> None:
        found.clear()
        try:
            found.append(read_whole(folder / name, open_file))
        except OSError as error:
            msg = f"{folder} holds no {name}, which identifies its run: {error.strerror}"
            raise StateError(msg) from error

    loaded = store.restore(take)
    return loaded, found[0] if loaded.info is not None else None


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
