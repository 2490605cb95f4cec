"""Checkpoints on disk with copies in an archive."""

import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
from holdfast.adapters.state_store.archive.lease import ArchiveLease
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.tiered import TieredStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from holdfast.ports.testing.snapshots import snapshot_of
from tests.support.archives import WatchedObjects, objects_at


@pytest.fixture
def told():
    """Return what the store has told of its archive."""
    return []


@pytest.fixture
def store_with(tmp_path, told):
    """Return a function that opens the store of this run folder, and uses its archive within a block."""

    @contextmanager
    def opened(*, root="run", keep=5, copies=5, around=None, patience=20.0):
        objects = objects_at(str(tmp_path / "archive"))
        if around is not None:
            objects = WatchedObjects(objects, around)
        lease = ArchiveLease(objects, say=lambda _: None)
        store = TieredStateStore(
            DiskStateStore(tmp_path / root, Retention(keep)),
            CheckpointArchive(objects, lease=lease),
            lease,
            Retention(copies),
            tell=told.append,
            patience=patience,
        )
        with store.archiving():
            yield store

    return opened


def copies_in(tmp_path):
    return sorted(path.parent.name for path in (tmp_path / "archive").glob("checkpoint-*/COMMIT"))


def test_each_checkpoint_is_copied_beside_training(tmp_path, store_with, told):
    """Once the store is flushed, the archive holds what was saved, and each copy was told with its place."""
    with store_with() as store:
        for step in (1, 2):
            store.save(snapshot_of(step, {"model": b"%d" % step}))
            store.flush()
    assert copies_in(tmp_path) == ["checkpoint-1", "checkpoint-2"]
    assert [(outcome.step, outcome.problem) for outcome in told] == [(1, None), (2, None)]
    assert Path(told[1].location) == tmp_path / "archive/checkpoint-2"


def test_a_lost_disk_is_made_good_from_the_archive(tmp_path, store_with):
    """On an empty disk a load brings the newest copy, and a run that has it goes on there."""
    with store_with() as store:
        store.save(snapshot_of(3, {"model": b"three", "inner/rng": b"r"}))
        store.flush()
    shutil.rmtree(tmp_path / "run")
    with store_with() as store:
        loaded = store.load()
        assert loaded.info.progress.step == 3
        assert (loaded.folder / "inner/rng").read_bytes() == b"r"
        store.save(snapshot_of(4, {}))
        assert [info.progress.step for info in store.list()] == [3, 4]


def test_a_damaged_copy_is_told_and_the_one_before_it_used(tmp_path, store_with):
    """A copy that does not verify is rejected with its place; the next older one is brought to the disk."""
    with store_with() as store:
        for step in (1, 2):
            store.save(snapshot_of(step, {"model": b"%d" % step}))
            store.flush()
    shutil.rmtree(tmp_path / "run")
    (tmp_path / "archive/checkpoint-2/model").write_bytes(b"x")
    with store_with() as store:
        loaded = store.load()
    assert loaded.info.progress.step == 1
    assert [(rejected.name, rejected.location) for rejected in loaded.rejected] == [
        ("checkpoint-2", str(tmp_path / "archive/checkpoint-2"))
    ]


def test_damage_on_the_disk_is_made_good_from_the_archive(tmp_path, store_with):
    """If nothing on the disk verifies, what is damaged is set aside and the copy takes its place."""
    with store_with() as store:
        store.save(snapshot_of(1, {"model": b"one"}))
        store.flush()
    (tmp_path / "run/checkpoints/checkpoint-1/model").write_bytes(b"two")
    with store_with() as store:
        loaded = store.load()
        assert (loaded.folder / "model").read_bytes() == b"one"
    assert [rejected.name for rejected in loaded.rejected] == ["checkpoint-1"]
    assert (tmp_path / "run/quarantine/checkpoint-1.wrong-hash").is_dir()


def test_what_was_not_archived_is_archived_by_the_next_start(tmp_path, store_with):
    """A checkpoint of a run that ended before its copy was made is copied once the run is resumed."""
    DiskStateStore(tmp_path / "run", Retention(5)).save(snapshot_of(1, {"model": b"one"}))
    with store_with() as store:
        assert store.load().info.progress.step == 1
        store.flush()
    assert copies_in(tmp_path) == ["checkpoint-1"]


def test_the_archive_has_a_retention_of_its_own(tmp_path, store_with):
    """The disk keeps one checkpoint and the archive two, whatever the order of saves and copies."""
    with store_with(keep=1, copies=2) as store:
        for step in (1, 2, 3):
            store.save(snapshot_of(step, {}))
            store.flush()
        assert [info.progress.step for info in store.list()] == [3]
    assert copies_in(tmp_path) == ["checkpoint-2", "checkpoint-3"]


def test_a_failing_archive_stops_nothing(tmp_path, store_with, told):
    """What cannot be copied is told with the reason, saves go on, and the next copy is tried."""
    failing = {"checkpoint-1/model"}

    def around(name, key, operation):
        if name == "upload" and key in failing:
            msg = "the bucket refuses: ask its owner"
            raise StateError(msg)
        return operation()

    with store_with(around=around) as store:
        for step in (1, 2):
            store.save(snapshot_of(step, {"model": b"m"}))
            store.flush()
    assert [(outcome.step, outcome.problem) for outcome in told] == [
        (1, "the bucket refuses: ask its owner"),
        (2, None),
    ]
    assert copies_in(tmp_path) == ["checkpoint-2"]


def test_what_is_being_copied_is_not_deleted(tmp_path, store_with, told):
    """A slow archive and a disk that keeps one checkpoint: the one under way stays until its copy is there."""
    begun, may_go_on = threading.Event(), threading.Event()

    def around(name, key, operation):
        if name == "upload" and key == "checkpoint-1/model":
            begun.set()
            assert may_go_on.wait(60)
        return operation()

    with store_with(keep=1, around=around) as store:
        store.save(snapshot_of(1, {"model": b"one"}))
        assert begun.wait(60)
        for step in (2, 3):
            store.save(snapshot_of(step, {"model": b"later"}))
        assert [info.progress.step for info in store.list()] == [1, 3]
        may_go_on.set()
        store.flush()
        store.save(snapshot_of(4, {}))
        store.flush()
        assert [info.progress.step for info in store.list()] == [4]
    assert [outcome.problem for outcome in told] == [None, None, None]
    assert copies_in(tmp_path) == ["checkpoint-1", "checkpoint-3", "checkpoint-4"]


def test_the_end_of_a_run_waits_for_so_long(store_with, caplog):
    """A flush gives up on an archive that hangs, says so, and the block ends soon after."""
    may_go_on = threading.Event()

    def around(name, _, operation):
        if name == "upload":
            may_go_on.wait(60)
        return operation()

    with store_with(around=around, patience=0.2) as store:
        store.save(snapshot_of(1, {"model": b"one"}))
        store.flush()
        assert "the archive is not complete after" in caplog.text
        may_go_on.set()
