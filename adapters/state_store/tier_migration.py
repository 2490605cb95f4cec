"""Moves copies of checkpoints between the disk and the archive."""

from __future__ import annotations

import contextlib
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.files.file_operations import FileOperations
from holdfast.adapters.state_store.checkpoint_verification import verify
from holdfast.adapters.state_store.hashing import CorruptCheckpoint
from holdfast.domain.checkpoints.retention import Role, StoredCheckpoint
from holdfast.domain.checkpoints.tiers import CheckpointCopies, CopyState, Phase, Tier
from holdfast.domain.commands import AcknowledgeMove
from holdfast.domain.errors import StateError
from holdfast.ports.state_store import RejectedCheckpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, MutableSequence, MutableSet, Sequence

    from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
    from holdfast.adapters.state_store.disk import DiskStateStore
    from holdfast.domain.checkpoints.retention import Retention
    from holdfast.domain.checkpoints.tiers import DiskBudget
    from holdfast.domain.commands import Command
    from holdfast.ports.state_store import CheckpointInfo

_log = logging.getLogger(__name__)

_HOUR = 3600.0


@final
class TierMigrator:
    """Copies checkpoints from ``archive`` to ``disk``, and deletes expired copies from either, one at a time.

    With a ``budget``, copies are deleted from a nearly full disk; a fetched one stays for ``hours`` of this process.
    Failed operations are logged and retried the next time. For one thread at a time.
    """

    def __init__(
        self,
        disk: DiskStateStore,
        archive: CheckpointArchive,
        *,
        budget: DiskBudget | None = None,
        hours: float = 0.0,
        tell: Callable[[Command], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._disk = disk
        self._archive = archive
        self._budget = budget
        self._keep_seconds = hours * _HOUR
        self._tell = tell
        self._clock = clock
        self._brought: dict[int, float] = {}
        self._sound: set[int] = set()
        self._is_tight = False

    def fetch(self, step: int, reason: str) -> None:
        """Fetch the copy of ``step`` to the disk and hold it there for ``hours``.

        Raises ``CorruptCheckpoint`` for a damaged copy, ``StateError`` for a copy that cannot be fetched.
        """
        self._disk.adopt(step, lambda staging: self._archive.fetch(step, staging))
        self._disk.hold(step)
        self._brought[step] = self._clock()
        self._tell(AcknowledgeMove(step, Tier.ARCHIVE, Tier.DISK, reason))

    def fetch_first(
        self,
        infos: Iterable[CheckpointInfo],
        reason: str,
        damaged: MutableSet[int],
        rejected: MutableSequence[RejectedCheckpoint],
    ) -> bool:
        """Fetch the first copy of ``infos`` that verifies; return whether one was fetched.

        Steps in ``damaged`` are skipped; copies that do not verify are added to ``damaged`` and ``rejected``.
        """
        for info in infos:
            step = info.progress.step
            if step in damaged:
                continue
            try:
                self.fetch(step, reason)
            except CorruptCheckpoint as corruption:
                damaged.add(step)
                rejected.append(RejectedCheckpoint(Path(info.location).name, str(corruption), info.location))
            else:
                return True
        return False

    def release(self, step: int) -> None:
        """Let retention delete ``step`` from the disk again, unless it was fetched."""
        if step not in self._brought:
            self._disk.release(step)

    def enforce_disk_budget(self, phase: Phase) -> None:
        """Delete evictable copies from a nearly full disk, the oldest first, until it has room."""
        self._release_brought()
        if self._budget is None or not self._disk.guard.allows(Role.DELETE):
            return
        try:
            while (leaving := self._next_to_leave(self._budget, phase)) is not None:
                self._evict(leaving)
        except (StateError, CorruptCheckpoint) as error:
            _log.warning("freeing disk space is postponed until the next copy: %s", error)

    def delete_superseded(self, step: int) -> None:
        """Delete from the archive the copies of steps after ``step``, which the run has rolled back."""
        for later in [known for known in _by_step(self._archive.list()) if known > step]:
            self._archive.delete(later)
            self._brought.pop(later, None)
            self._sound.discard(later)

    def apply_retention(self, retention: Retention, *, saved: int) -> Sequence[int]:
        """Delete expired copies from the archive, as ``retention`` says; return their steps.

        The best checkpoint by early stopping and the last copy of one that the disk retains for ever are kept. With a
        budget, copies of all checkpoints on disk are kept too.
        """
        deleted: list[int] = []
        try:
            self._apply_retention(retention, saved, deleted)
        except StateError as error:
            _log.warning("deleting from the archive is postponed until the next copy: %s", error)
        return deleted

    def _apply_retention(self, retention: Retention, saved: int, deleted: list[int]) -> None:
        if not self._disk.guard.allows(Role.DELETE):
            return
        local, archived = _by_step(self._disk.list()), _by_step(self._archive.list())
        pinned = self._disk.pinned()
        retained_forever = self._disk.retention.retained_forever(_stored({**archived, **local}, pinned))
        may_leave_disk = () if self._budget is None else local.keys()
        expired = retention.expired(_stored(archived, pinned), saved=saved)
        floor = self._disk.retention.floor
        for step in [step for step in expired if step not in may_leave_disk and (not floor or step != floor.best)]:
            copies = {Tier.ARCHIVE: CopyState.READY, Tier.DISK: _state(step in local)}
            if CheckpointCopies(step, copies, is_protected=step in retained_forever).may_leave(Tier.ARCHIVE):
                self._disk.guard.record_deletion(archived[step].location, "retention of the archive")
                self._archive.delete(step)
                deleted.append(step)

    def _next_to_leave(self, budget: DiskBudget, phase: Phase) -> CheckpointCopies | None:
        local = self._disk.list()
        sizes = [CheckpointCopies(info.progress.step, {Tier.DISK: CopyState.READY}, info.num_bytes) for info in local]
        self._is_tight = budget.is_tight(sizes, was_tight=self._is_tight)
        return budget.next_to_leave(self._survey(local, budget.min_verified), phase) if self._is_tight else None

    def _survey(self, local: Sequence[CheckpointInfo], min_verified: int) -> Sequence[CheckpointCopies]:
        archived, pinned = _by_step(self._archive.list()), self._disk.pinned()
        placed: list[CheckpointCopies] = []
        for info in reversed(local):
            step = info.progress.step
            is_archived = step in archived and self._archive.holds(self._disk.folder_of(step))
            copies = {Tier.DISK: CopyState.READY, Tier.ARCHIVE: _state(is_archived)}
            num_verified = sum(one.is_verified for one in placed)
            placed.append(
                CheckpointCopies(
                    step,
                    copies,
                    info.num_bytes,
                    is_held=step in pinned or self._disk.is_held(step),
                    is_verified=num_verified < min_verified and self._is_sound(step),
                )
            )
        return placed

    def _evict(self, placed: CheckpointCopies) -> None:
        leaving = placed.with_copy(Tier.DISK, CopyState.DELETING)
        self._disk.evict(placed.step)
        left = leaving.with_copy(Tier.DISK, CopyState.DELETED)
        assert left.is_ready_in(Tier.ARCHIVE)
        self._tell(AcknowledgeMove(placed.step, Tier.DISK, Tier.ARCHIVE, "the disk is nearly full"))

    def _is_sound(self, step: int) -> bool:
        with contextlib.suppress(CorruptCheckpoint, OSError, StateError):
            if step not in self._sound:
                verify(FileOperations(), self._disk.folder_of(step))
                self._sound.add(step)
            return True
        return False

    def _release_brought(self) -> None:
        now = self._clock()
        for step in [step for step, since in list(self._brought.items()) if now - since >= self._keep_seconds]:
            del self._brought[step]
            self._disk.release(step)


def _state(is_there: bool) -> CopyState:  # noqa: FBT001  the whole question
    return CopyState.READY if is_there else CopyState.DELETED


def _by_step(infos: Sequence[CheckpointInfo]) -> Mapping[int, CheckpointInfo]:
    return {info.progress.step: info for info in infos}


def _stored(infos: Mapping[int, CheckpointInfo], pinned: Collection[int]) -> Mapping[int, StoredCheckpoint]:
    return {step: StoredCheckpoint(info.evaluation_loss, info.saved_at, step in pinned) for step, info in infos.items()}
