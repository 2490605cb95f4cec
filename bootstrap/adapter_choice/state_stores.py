"""The checkpoints of a run: on disk, encrypted, archived."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, final

from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.store_folder import AccessGuard
from holdfast.adapters.state_store.tier_migration import TierMigrator
from holdfast.adapters.state_store.tiered import TieredStateStore, recall
from holdfast.bootstrap.adapter_choice.encryption_keys import build_checkpoint_encryption
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.bootstrap.run_folder.found_paths import settings_as_found
from holdfast.bootstrap.run_folder.layout import RECORD, RunLayout
from holdfast.bootstrap.run_folder.record_file import (
    RecordCopy,
    RecordLostError,
    put_back,
    read_record,
    record_in,
    stored_record,
)
from holdfast.bootstrap.run_folder.run_lock import set_aside
from holdfast.configs.secret_masking import mask_text
from holdfast.configs.sections.state_store import DiskStateStoreSettings
from holdfast.domain.checkpoints.retention import Retention, Role
from holdfast.domain.checkpoints.tiers import DiskBudget, phase_at
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.fault_tolerance.remedies import FRESH
from holdfast.domain.sizes import size_in_bytes
from holdfast.ports.state_store import Loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
    from holdfast.adapters.state_store.archive.object_store import ObjectStore
    from holdfast.application.inbox import Inbox
    from holdfast.configs.sections.run import RunSettings
    from holdfast.configs.sections.state_store import ArchiveSettings, StateStoreSettings
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.lr_schedule import Schedule
    from holdfast.ports.state_store import StateStore


@final
@dataclass(frozen=True, slots=True)
class StoreRequest:
    """The settings of the checkpoints of ``run`` in ``directory``; ``count`` gets the bytes of uploads to the archive.

    Only the first ``rank`` has the archive. ``guard`` permits what the roles of this process permit.
    """

    section: StateStoreSettings
    run: RunSettings
    directory: Path
    inbox: Inbox
    report: Callable[[str], object]
    rank: int = 0
    guard: AccessGuard = field(default_factory=AccessGuard)
    count: Callable[[int, int], object] = lambda _done, _total: None


def memory_store(request: StoreRequest) -> StateStore:
    """Return a store in the memory of this process."""
    kept = request.section
    made: StateStore = lazy("holdfast.adapters.state_store.memory:MemoryStateStore")(
        Retention(kept.keep, kept.keep_every, kept.keep_best, kept.keep_hours)
    )
    return made


def disk_store(request: StoreRequest) -> DiskStateStore | TieredStateStore:
    """Return the store of a run on its disk, on the first rank with its archive."""
    chosen, run, report, tell = request.section, request.run, request.report, request.inbox.post
    assert isinstance(chosen, DiskStateStoreSettings)
    disk = DiskStateStore(
        request.directory,
        Retention(chosen.keep, every=chosen.keep_every, best=chosen.keep_best, hours=chosen.keep_hours),
        encryption=build_checkpoint_encryption(chosen.encryption) if request.guard.allows(Role.KEY) else None,
        guard=request.guard,
    )
    if chosen.archive is None or request.rank > 0:
        return disk
    from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
    from holdfast.adapters.state_store.archive.lease import ArchiveLease

    objects = _objects(chosen.archive, run.name)
    lease = ArchiveLease(objects, say=report)
    archive, kept = CheckpointArchive(objects, lease=lease, count=request.count), chosen.archive
    budget = None if chosen.disk_budget is None else DiskBudget(size_in_bytes(chosen.disk_budget))
    return TieredStateStore(
        disk,
        archive,
        lease,
        Retention(kept.keep, kept.keep_every, kept.keep_best, kept.keep_hours),
        moves=TierMigrator(disk, archive, budget=budget, hours=kept.restored_copy_hours, tell=tell),
        tell=tell,
        patience=kept.patience_seconds,
    )


def follow_schedule(store: StateStore, schedule: Schedule) -> None:
    """Let the archive of ``store``, if it has one, keep more of the checkpoints before the decay of ``schedule``."""
    if isinstance(store, TieredStateStore):
        store.phase_of = partial(phase_at, schedule=schedule)


@contextmanager
def archive_in_use(
    store: StateStore, directory: Path, inbox: Inbox, report: Callable[[str], object] = lambda _: None
) -> Iterator[None]:
    """Let ``store`` use its archive, if it has one, as the only writer of the run.

    A run folder without a sound record, for example after the loss of its disk, gets that of the newest checkpoint that
    ``store`` finds, and the run continues from there; ``report`` gets a sentence on it. Raises ``StateError`` if the
    copies are of another run, or no checkpoint of the run has a sound record.
    """
    if not isinstance(store, TieredStateStore):
        _recall_record(store, directory, report)
        yield
        return
    with store.archiving(lambda: inbox.stop_requested):
        _recall_record(store, directory, report)
        if RunLayout(directory).record.exists():
            store.check_owner(stored_record(directory).get("id"))
        yield


def _recall_record(store: StateStore, directory: Path, report: Callable[[str], object]) -> None:
    """Put back a record of which no plain checkpoint on the disk has a copy, from an encrypted or an archived one."""
    try:
        stored_record(directory)
    except RecordLostError as lost:
        is_new, is_trained = not RunLayout(directory).record.exists(), bool(RunLayout(directory).durable_steps())
        loaded, found = Loaded(None, None), None
        if isinstance(store, TieredStateStore):
            loaded, found = store.recall(RECORD)
        elif is_trained:
            loaded, found = recall(store, RECORD)
        if found is not None and loaded.info is not None:
            copy = RecordCopy(f"checkpoint-{loaded.info.progress.step}", record_in(found, directory / RECORD))
            report(put_back(directory, copy, str(lost)))
        elif is_trained or not is_new:
            msg = f"{lost}, and no checkpoint holds a sound copy of it: set the folder aside with {FRESH}"
            raise StateError(msg) from lost


def claim_archive(store: StateStore, run: str) -> None:
    """Reserve the archive that ``store`` uses, if any, for copies of the run with the id ``run``."""
    if isinstance(store, TieredStateStore):
        store.claim(run)


def refuse_old_copies(settings: TrainSettings) -> None:
    """Raise ``ConfigurationError`` if the archive of a new run holds copies of an older run."""
    archive = settings.state_store.archive
    if archive is None:
        return
    from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive

    objects = _objects(archive, settings.run.name)
    if CheckpointArchive(objects).list():
        msg = f"{objects.name()} holds checkpoints of an older run: give the new one another run.name or archive url"
        raise ConfigurationError(msg)


def begin_afresh(settings: TrainSettings, report: Callable[[str], object]) -> None:
    """Move an existing folder of the run aside; raises ``ConfigurationError`` if its archive would be shared."""
    refuse_old_copies(settings)
    if (target := set_aside(settings.run.directory)) is not None:
        report(f"the old run is in {target}")


def archived_steps(directory: Path) -> Collection[int]:
    """Return the steps of the complete copies in the archive of the run folder; writes nothing there.

    Raises ``StateError`` for a folder without a run, or a run without an archive.
    """
    settings = settings_as_found(read_record(directory), directory)
    with archive_of(settings, is_writing=False) as archive:
        if archive is None:
            msg = f"the run of {directory} has no archive: leave out --archive"
            raise StateError(msg)
        return {info.progress.step for info in archive.list()}


@contextmanager
def archive_of(settings: TrainSettings, *, is_writing: bool) -> Iterator[CheckpointArchive | None]:
    """Give the archive of a run, None if it has none; for writing, wait until no other process writes there."""
    archive = settings.state_store.archive
    if archive is None:
        yield None
        return
    from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
    from holdfast.adapters.state_store.archive.lease import ArchiveLease, held

    objects = _objects(archive, settings.run.name)
    if not is_writing:
        yield CheckpointArchive(objects)
        return
    lease = ArchiveLease(objects, say=lambda line: sys.stderr.write(f"{line}\n"))
    lease.acquire()
    with held(lease):
        writable = CheckpointArchive(objects, lease=lease)
        writable.sweep()
        yield writable


def _objects(settings: ArchiveSettings, name: str) -> ObjectStore:
    from holdfast.adapters.state_store.archive.open_object_store import open_object_store

    return open_object_store(f"{settings.url.rstrip('/')}/{name}", mask=mask_text)
