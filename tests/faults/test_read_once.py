"""What a checkpoint that is read once, and verified meanwhile, does to a run if it is damaged."""

from __future__ import annotations

import errno
import random
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.shared.files.file_operations import FileOperations
from holdfast.adapters.state_store import verified_read
from holdfast.adapters.state_store import verified_read as hashed_file
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.hashing import hash_file
from holdfast.adapters.state_store.verified_read import HashedFile
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from tests.support.file_faults import FailAt, WatchedFiles, files_under, payload, snapshot_of

PIECE = 4096
DATA = random.Random(0).randbytes(5 * PIECE + 123)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Count each file as large."""
    monkeypatch.setattr(hashed_file, "_PIECE", PIECE)
    monkeypatch.setattr(verified_read, "_LARGE", 1)


@pytest.fixture
def root(tmp_path):
    store = DiskStateStore(tmp_path, Retention(3))
    for step in (1, 2, 3):
        store.save(snapshot_of(step))
    return tmp_path


def spoil(root, step):
    """Flip a bit of a file of the checkpoint of ``step``."""
    path = root / f"checkpoints/checkpoint-{step}" / min(payload(step))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def read_all(found):
    """Return what takes over a state, by reading each file to its end, into ``found``."""

    def take_over(folder, open_file):
        found.clear()
        for name, size in sorted((name, len(data)) for name, data in files_under(folder).items()):
            if name in payload(1):
                with open_file(folder / name) as file:
                    buffer = bytearray(size)
                    assert file.fill(0, memoryview(buffer)) == size
                    found[name] = bytes(buffer)

    return take_over


@settings(deadline=None, max_examples=60)
@given(reads=st.lists(st.tuples(st.integers(0, len(DATA) + 9), st.integers(0, 2 * PIECE)), max_size=6))
def test_whatever_is_read_of_a_file_is_what_it_holds(tmp_path_factory, reads):
    """Any ranges in any order are the file's bytes, and the hash is that of the whole file in the end."""
    path = tmp_path_factory.mktemp("once") / "file"
    path.write_bytes(DATA)
    with ExitStack() as stack:
        file = HashedFile(FileOperations(), path, stack)
        for offset, size in reads:
            target = bytearray(size)
            count = file.fill(offset, memoryview(target))
            assert target[:count] == DATA[offset : offset + size]
            assert count == len(DATA[offset : offset + size])
            assert file.read(offset, size) == DATA[offset : offset + size]
        assert file.finish() == {hash_file(FileOperations(), path)}


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_taken_over(root):
    """What was read of damaged bytes is replaced by the older state."""
    spoil(root, 3)
    found = {}
    loaded = DiskStateStore(root, Retention(3)).restore(read_all(found))
    assert found == payload(2)
    assert loaded.info.progress.step == 2
    assert [(each.name, Path(each.location).parent) for each in loaded.rejected] == [
        ("checkpoint-3", root / "quarantine")
    ]


@pytest.mark.parametrize("is_read", [True, False])
def test_damage_counts_more_than_what_comes_of_it(root, is_read):
    """A state that cannot be taken over because it is damaged is a damaged one, not one that does not fit."""
    spoil(root, 3)
    calls = []

    def take_over(folder, open_file):
        calls.append(folder.name)
        if is_read:
            read_all({})(folder, open_file)
        if len(calls) == 1:
            msg = "these are no weights"
            raise StateError(msg)

    assert DiskStateStore(root, Retention(3)).restore(take_over).info.progress.step == 2
    assert calls == ["checkpoint-3", "checkpoint-2"]


def test_what_nobody_reads_is_verified_all_the_same(root):
    """A file that is left unread, or read in part, is as much a part of the checkpoint."""
    spoil(root, 3)
    assert DiskStateStore(root, Retention(3)).restore(lambda *_: None).info.progress.step == 2


def test_of_damaged_ones_alone_nothing_is_restored(root):
    """Where no other is left the caller is told that there is none, though each was handed over: all are set aside."""
    for step in (1, 2, 3):
        spoil(root, step)
    calls = []
    loaded = DiskStateStore(root, Retention(3)).restore(lambda folder, _: calls.append(folder.name))
    assert loaded.info is None
    assert calls == ["checkpoint-3", "checkpoint-2", "checkpoint-1"]
    assert [each.name for each in loaded.rejected] == ["checkpoint-3", "checkpoint-2", "checkpoint-1"]


@pytest.mark.parametrize("spoilt", ["manifest", "extra", "missing", "size"])
def test_what_can_be_told_without_reading_is_told_before(root, spoilt):
    """Names, sizes and the manifest are compared before anything is handed over."""
    folder = root / "checkpoints/checkpoint-3"
    first = folder / min(payload(3))
    match spoilt:
        case "manifest":
            (folder / "MANIFEST.json").write_bytes(b"{}")
        case "extra":
            (folder / "extra").write_bytes(b"")
        case "missing":
            first.unlink()
        case "size":
            first.write_bytes(first.read_bytes() + b"x")
    calls = []
    DiskStateStore(root, Retention(3)).restore(lambda handed, _: calls.append(handed.name))
    assert calls == ["checkpoint-2"]


@pytest.mark.parametrize("operation", range(4))
def test_a_disk_that_cannot_be_read_sets_nothing_aside(root, operation):
    """What fails once is told, and the checkpoint stays where it is, to be restored by the next try."""
    failing = FailAt(operation, errno.EIO)
    with pytest.raises(StateError, match="could not be read"):
        DiskStateStore(root, Retention(3), files=WatchedFiles(failing)).restore(read_all({}))
    assert failing.failed == ["open_file"]
    found = {}
    assert DiskStateStore(root, Retention(3)).restore(read_all(found)).info.progress.step == 3
    assert found == payload(3)


@pytest.fixture
def changed(monkeypatch):
    """Hold hashing back until this is set."""
    event = threading.Event()

    class Waiting:
        def __init__(self, **_):
            self._hasher = blake3()
            self.hexdigest = self._hasher.hexdigest

        def update(self, piece):
            event.wait(60)
            self._hasher.update(piece)

    monkeypatch.setattr(hashed_file, "blake3", Waiting)
    return event


@pytest.mark.parametrize("is_usable", [True, False])
@pytest.mark.parametrize("times", [1, 2])
def test_what_was_changed_before_it_was_hashed_is_read_again(root, changed, times, is_usable):
    """A buffer that is used for something else at once is no damage, and what came of it does not stay."""
    calls = []
    found = {}

    def take_over(folder, open_file):
        calls.append(folder.name)
        name = min(payload(3))
        for _ in range(times):
            buffer = bytearray(len(payload(3)[name]))
            with open_file(folder / name) as file:
                file.fill(0, memoryview(buffer))
                if not changed.is_set():
                    buffer[:] = bytes(len(buffer))
                    changed.set()
            if len(calls) == 1 and not is_usable:
                msg = "these are no weights"
                raise StateError(msg)
        found[name] = bytes(buffer)

    loaded = DiskStateStore(root, Retention(3)).restore(take_over)
    assert calls == ["checkpoint-3", "checkpoint-3"]
    assert found.items() <= payload(3).items()
    assert (loaded.info.progress.step, loaded.rejected) == (3, ())


def test_a_damaged_checkpoint_is_not_read_a_third_time(root, monkeypatch):
    """What is not as saved when it is read again is set aside."""
    spoil(root, 3)
    checked = []
    check = verified_read.check_hash
    monkeypatch.setattr(verified_read, "check_hash", lambda *given: [checked.append(given[2].path), check(*given)])
    found = {}
    assert DiskStateStore(root, Retention(3)).restore(read_all(found)).info.progress.step == 2
    assert checked == [min(payload(3))]
    assert found == payload(2)


def test_reading_stays_ahead_of_hashing_by_few_pieces(tmp_path, changed, monkeypatch):
    """Memory that is filled for a moment can go again, however large the file."""
    monkeypatch.setattr(hashed_file, "_MOST_PENDING", 3)
    path = tmp_path / "file"
    path.write_bytes(DATA)
    ended = []

    def read():
        with ExitStack() as stack:
            file = HashedFile(FileOperations(), path, stack)
            ended.extend(file.fill(PIECE * piece, memoryview(bytearray(PIECE))) for piece in range(5))

    reader = threading.Thread(target=read)
    reader.start()
    while len(ended) < 3:
        time.sleep(0.01)
    time.sleep(0.2)  # in which it would read a fourth
    before = list(ended)
    changed.set()
    reader.join(60)
    assert (before, ended) == ([PIECE] * 3, [PIECE] * 5)


def test_an_interrupt_is_not_waited_for(root, monkeypatch):
    """Whoever stops a restore does not wait until the rest is verified."""
    checked = []
    monkeypatch.setattr(verified_read, "check_hash", lambda *_, **__: checked.append(True))

    def take_over(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DiskStateStore(root, Retention(3)).restore(take_over)
    assert checked == []
