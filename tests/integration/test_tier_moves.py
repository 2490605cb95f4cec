"""Copies that leave a full disk for the archive, and come back when they are needed."""

import shutil
import threading
from contextlib import contextmanager

import pytest

from holdfast.adapters.shared.files.file_operations import FileOperations
from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
from holdfast.adapters.state_store.archive.lease import ArchiveLease
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.store_folder import StoreFolder
from holdfast.adapters.state_store.tier_migration import TierMigrator
from holdfast.adapters.state_store.tiered import TieredStateStore
from holdfast.domain.checkpoints.retention import Retention, RollBackFloor
from holdfast.domain.checkpoints.tiers import DiskBudget, Phase, Tier
from holdfast.domain.commands import AcknowledgeArchive, AcknowledgeMove
from holdfast.ports.testing.snapshots import snapshot_of
from tests.support.archives import WatchedObjects, objects_at

PAYLOAD = 1000


@pytest.fixture
def told():
    """Return what the store has told."""
    return []


@pytest.fixture
def store_with(tmp_path, told):
    """Return a function that opens the store of this run folder with a disk of so many payloads."""

    @contextmanager
    def opened(budget=None, *, around=None, copies=100, phase=Phase.STEADY, hours=1.0, clock=lambda: 0.0, keep=None):
        objects = objects_at(str(tmp_path / "archive"))
        if around is not None:
            objects = WatchedObjects(objects, around)
        lease = ArchiveLease(objects, say=lambda _: None)
        disk = DiskStateStore(tmp_path / "run", keep or Retention(100))
        archive = CheckpointArchive(objects, lease=lease)
        limit = None if budget is None else DiskBudget(budget * PAYLOAD)
        store = TieredStateStore(
            disk,
            archive,
            lease,
            Retention(copies),
            moves=TierMigrator(disk, archive, budget=limit, hours=hours, tell=told.append, clock=clock),
            tell=told.append,
            patience=20.0,
            phase_of=lambda _: phase,
        )
        with store.archiving():
            yield store

    return opened


def save(store, *steps):
    for step in steps:
        store.save(snapshot_of(step, {"model": bytes([step]) * PAYLOAD}))
        store.flush()


def steps_of(store):
    return [info.progress.step for info in store.list()]


def copies_in(tmp_path):
    return sorted(
        int(path.parent.name.partition("-")[2]) for path in (tmp_path / "archive").glob("checkpoint-*/COMMIT")
    )


def moves_among(told):
    return [(move.step, move.source, move.target) for move in told if isinstance(move, AcknowledgeMove)]


def test_a_disk_that_is_nearly_full_is_emptied_of_what_is_archived(tmp_path, store_with, told):
    """With a budget of ten the ninth begins it: the oldest leave until seven are left, each told, all archived."""
    with store_with(10) as store:
        save(store, *range(1, 9))
        assert moves_among(told) == []
        save(store, 9)
        assert steps_of(store) == [3, 4, 5, 6, 7, 8, 9]
    assert moves_among(told) == [(1, Tier.DISK, Tier.ARCHIVE), (2, Tier.DISK, Tier.ARCHIVE)]
    assert copies_in(tmp_path) == list(range(1, 10))
    assert list((tmp_path / "run/.trash").iterdir()) == []


def test_two_verified_ones_and_what_is_pinned_stay_on_the_smallest_disk(tmp_path, store_with):
    """However small the budget, two that verify and what somebody pinned stay; what is damaged does not count."""
    with store_with(1) as store:
        save(store, 1, 2)
        StoreFolder(tmp_path / "run", FileOperations()).pin(1)
        save(store, 3, 4)
        assert steps_of(store) == [1, 3, 4]
    (tmp_path / "run/checkpoints/checkpoint-4/model").write_bytes(b"damaged")
    with store_with(1) as store:
        save(store, 5)
        assert steps_of(store) == [1, 3, 5]


def test_what_is_not_archived_stays_however_full_the_disk_is(tmp_path, store_with, told):
    """A copy that could not be made keeps its checkpoint on the disk, and so does another one in its place."""

    def around(name, key, operation):
        if name == "upload" and key == "checkpoint-1/model":
            msg = "planted"
            raise OSError(msg)
        return operation()

    with store_with(1, around=around) as store:
        save(store, 1, 2, 3, 4)
        assert steps_of(store) == [1, 3, 4]
        shutil.copytree(tmp_path / "archive/checkpoint-2", tmp_path / "archive/checkpoint-1")
        save(store, 5)
        assert steps_of(store) == [1, 4, 5]


def test_a_copy_of_another_checkpoint_is_none(tmp_path, store_with):
    """What the archive holds under the name of a step lets it leave the disk only if it is this very checkpoint."""
    DiskStateStore(tmp_path / "other", Retention(5)).save(snapshot_of(1, {"model": b"another"}))
    with store_with(1) as store:
        save(store, 1, 2)
        shutil.rmtree(tmp_path / "archive/checkpoint-1")
        shutil.copytree(tmp_path / "other/checkpoints/checkpoint-1", tmp_path / "archive/checkpoint-1")
        save(store, 3, 4)
        assert steps_of(store) == [1, 3, 4]


def test_nothing_leaves_between_a_resume_and_its_first_save(tmp_path, store_with):
    """A run that goes on keeps what it has, on the disk and in the archive, until it has saved again."""
    with store_with() as store:
        save(store, 1, 2, 3)
    with store_with(copies=1) as store:
        store.load()
        store.flush()
    assert copies_in(tmp_path) == [1, 2, 3]
    with store_with(1, copies=1) as store:
        assert store.load().info.progress.step == 3
        store.flush()
        assert steps_of(store) == [1, 2, 3]
        save(store, 4)
        assert steps_of(store) == [3, 4]


def test_the_archive_keeps_the_last_copy_of_what_is_kept_for_ever(tmp_path, store_with):
    """A milestone that has left the disk outlives the archive's own retention; one on the disk does not need to."""
    with store_with(1, copies=1, keep=Retention(2, every=3)) as store:
        save(store, *range(1, 8))
        assert steps_of(store) == [6, 7]
    assert copies_in(tmp_path) == [3, 6, 7]


def test_the_archive_keeps_the_best_checkpoint_and_tells_what_it_deletes(tmp_path, store_with, told):
    """The copy of the best by early stopping stays whatever the archive's retention says, and deletions are told."""
    with store_with(copies=2) as store:
        store.spare(RollBackFloor(1, 1, best=2))
        save(store, *range(1, 7))
    assert copies_in(tmp_path) == [2, 5, 6]
    deleted = [step for each in told if isinstance(each, AcknowledgeArchive) for step in each.deleted]
    assert deleted == [1, 3, 4]


def test_a_milestone_that_has_left_is_replaced_by_none(store_with):
    """Once the first checkpoint of an hour has left the disk, the next ones of that hour are kept no longer for it."""

    def around(name, key, operation):
        if name == "upload" and key == "checkpoint-2/model":
            msg = "planted"
            raise OSError(msg)
        return operation()

    with store_with(1, around=around, keep=Retention(2, hours=10**6)) as store:
        save(store, 1, 2, 3, 4, 5)
        assert steps_of(store) == [4, 5]


def test_what_was_brought_stays_for_a_while(tmp_path, store_with, told):
    """A copy that came back to a full disk is not sent away again before its hours are over."""
    now = [0.0]
    with store_with() as store:
        save(store, 1)
    shutil.rmtree(tmp_path / "run")
    with store_with(1, keep=Retention(1), hours=2.0, clock=lambda: now[0]) as store:
        assert store.load().info.progress.step == 1
        store.flush()
        assert moves_among(told) == [(1, Tier.ARCHIVE, Tier.DISK)]
        now[0] = 2 * 3600.0 - 1
        save(store, 2, 3, 4)
        assert steps_of(store) == [1, 4]
        now[0] += 1
        save(store, 5, 6)
        assert steps_of(store) == [6]


def test_a_roll_back_brings_what_has_left_the_disk(store_with, told):
    """A step that is in the archive alone comes back, bytes and all; nearer ones on the disk are taken from there."""
    with store_with(1) as store:
        save(store, 1, 2, 3, 4)
        assert steps_of(store) == [3, 4]
        assert store.load(at_most=3).info.progress.step == 3
        assert moves_among(told)[2:] == []
        loaded = store.load(at_most=2)
        assert loaded.info.progress.step == 2
        assert (loaded.folder / "model").read_bytes() == bytes([2]) * PAYLOAD
        assert moves_among(told)[2:] == [(2, Tier.ARCHIVE, Tier.DISK)]
        store.supersede(2)
        store.flush()
        save(store, 3)
        assert steps_of(store) == [2, 3]
        assert store.load(at_most=1).info.progress.step == 1


def test_a_damaged_copy_is_passed_over_by_a_roll_back(tmp_path, store_with):
    """A copy that does not verify is told with its place, and the one before it is brought."""
    with store_with(1) as store:
        save(store, 1, 2, 3, 4)
        (tmp_path / "archive/checkpoint-2/model").write_bytes(bytes(PAYLOAD))
        loaded = store.load(at_most=2)
        assert loaded.info.progress.step == 1
        assert [rejected.name for rejected in loaded.rejected] == ["checkpoint-2"]


@pytest.mark.parametrize(("phase", "archived"), [(Phase.STEADY, [1, 4]), (Phase.ANNEAL, [1, 4, 3, 2])])
def test_in_the_anneal_each_one_is_archived(store_with, told, phase, archived):
    """While a slow copy is made others are saved: in the anneal all of them are copied, else the newest alone."""
    begun, may_go_on = threading.Event(), threading.Event()

    def around(name, key, operation):
        if name == "upload" and key == "checkpoint-1/model":
            begun.set()
            assert may_go_on.wait(60)
        return operation()

    with store_with(around=around, phase=phase, keep=Retention(1)) as store:
        store.save(snapshot_of(1, {"model": b"one"}))
        assert begun.wait(60)
        for step in (2, 3, 4):
            store.save(snapshot_of(step, {"model": b"later"}))
        may_go_on.set()
        store.flush()
    assert [outcome.step for outcome in told if isinstance(outcome, AcknowledgeArchive)] == archived
    assert all(outcome.problem is None for outcome in told)
