"""What is left of a checkpoint whose erasure is cut short at any moment: it is as it was, or nobody can read it."""

from __future__ import annotations

import json
import shutil

import pytest

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.state_store.checkpoint_encryption import CheckpointEncryption, Eraser, erased_in
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from holdfast.ports.testing.snapshots import snapshot_of
from tests.support.file_faults import Recorder, WatchedFiles, files_under


class CutShortError(BaseException):
    """The process ends here."""


class CutAt:
    """Lets so many file operations through, and then no more; ``half`` of the last one is done before."""

    def __init__(self, point):
        self.left = point

    def __call__(self, _name, _path, operation):
        if self.left == 0:
            raise CutShortError
        self.left -= 1
        return operation()


@pytest.fixture
def store_in(tmp_path):
    """Return a function that opens a store of encrypted checkpoints."""
    (tmp_path / "memory").mkdir()
    encryption = CheckpointEncryption(MemoryKeyProvider(b"\x01" * 32), tmp_path / "memory")
    return lambda root: DiskStateStore(root, Retention(9), encryption=encryption)


@pytest.fixture
def full(tmp_path, store_in):
    """Return a store of two checkpoints, the newer one pinned, with a third that a crash left in the trash."""
    root = tmp_path / "full"
    for step in (1, 2):
        store_in(root).save(snapshot_of(step, {"model": b"m" * 100, "inner/rng": b"r"}))
    (root / "pins").mkdir()
    (root / "pins/checkpoint-2").touch()
    shutil.copytree(root / "checkpoints/checkpoint-1", root / ".trash/checkpoint-1.dead")
    return root


def keys_in(root):
    """Return the wrapped keys of the manifests under ``root``."""
    manifests = [json.loads(path.read_bytes()) for path in root.rglob("MANIFEST.json")]
    return [manifest["encryption"]["wrapped_key"].encode() for manifest in manifests]


def erase_all(root, around):
    eraser = Eraser(root, WatchedFiles(around))
    for found in eraser.found():
        eraser.erase(found)
    eraser.clear()


def test_no_key_is_left(full, store_in):
    """Of what was erased, no file holds a key or a byte of a part; a load is refused, and says why."""
    keys = keys_in(full)
    erase_all(full, Recorder())
    left = files_under(full)
    assert sorted(left) == ["erased/checkpoint-1/ERASED.json", "erased/checkpoint-2/ERASED.json"]
    assert not any(key in data for key in keys for data in left.values())
    assert [name for name, _ in erased_in(full)] == ["checkpoint-1", "checkpoint-2"]
    with pytest.raises(StateError, match="were erased and none is left: start a new run with --fresh"):
        store_in(full).load()


def test_a_key_is_overwritten_and_synced_before_it_is_deleted(full):
    """The manifest's bytes are zeroed where they lie, and that is durable, before its name goes."""
    recorder = Recorder()
    erase_all(full, recorder)
    of_manifest = [name for name, path in recorder.operations if path.name == "MANIFEST.json"]
    assert of_manifest == ["overwrite_file", "sync_file", "remove_file"] * 3


def test_overwriting_reaches_a_second_name_of_the_file(full, tmp_path):
    """What a backup by hard links shares with the store is zeroed there too."""
    (tmp_path / "link").hardlink_to(full / "checkpoints/checkpoint-1/MANIFEST.json")
    erase_all(full, Recorder())
    assert set((tmp_path / "link").read_bytes()) == {0}


def test_an_erasure_cut_short_anywhere_goes_on(full, tmp_path, store_in):
    """After each operation a load gives a whole checkpoint or none, and the next erasure leaves no key."""
    recorder = Recorder()
    shutil.copytree(full, tmp_path / "counted")
    erase_all(tmp_path / "counted", recorder)
    keys = keys_in(full)
    assert len(recorder.operations) > 30
    for point in range(len(recorder.operations)):
        root = tmp_path / f"{point}"
        shutil.copytree(full, root)
        with pytest.raises(CutShortError):
            erase_all(root, CutAt(point))
        try:
            loaded = store_in(root).load()
        except StateError:
            assert not any((root / "checkpoints").iterdir())
        else:
            assert (loaded.folder / "model").read_bytes() == b"m" * 100
            assert loaded.rejected == ()
        erase_all(root, Recorder())
        assert not any(key in data for key in keys for data in files_under(root).values())
        shutil.rmtree(root)
