"""What is left of encrypted tokens whose erasure is cut short at any moment: all, or nothing that can be read."""

from __future__ import annotations

import json
import shutil

import pytest

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
from holdfast.adapters.shared.token_store.token_erasure import TokenEraser
from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.domain.errors import StateError
from holdfast.ports.testing.token_cache import tokens_of
from tests.faults.test_erasure import CutAt, CutShortError
from tests.faults.test_token_cache_faults import WatchedTokenFiles
from tests.support.file_faults import Recorder, files_under

SEALING = ShardEncryption(MemoryKeyProvider(b"\x01" * 32))


def cache_in(root):
    return DiskTokenCache(root, "dataset", encryption=SEALING)


@pytest.fixture
def full(tmp_path):
    """Return a cache of two shards, with a third in quarantine and a fourth in a draft of a dead process."""
    root = tmp_path / "full"
    cache = cache_in(root)
    for name in "abcd":
        cache.put(name, [tokens_of([[1, 2], [3]])], {})
    third, fourth = sorted((root / "dataset").iterdir())[2:]
    third.rename(root / ".quarantine" / f"dataset.{third.name}.01234567")
    fourth.rename(root / ".tmp/0123")
    return root


def keys_in(root):
    """Return the wrapped keys of the manifests under ``root``."""
    manifests = [json.loads(path.read_bytes()) for path in root.rglob("manifest.json")]
    return [manifest["encryption"]["wrapped_key"].encode() for manifest in manifests]


def erase_all(root, around, dataset=None):
    eraser = TokenEraser(root, WatchedTokenFiles(around), {"user": "somebody"}, dataset)
    with eraser.alone():
        for found in eraser.found():
            eraser.erase(found)


def test_a_key_is_overwritten_and_synced_before_it_is_deleted(full):
    """The bytes of each manifest are zeroed where they lie, and that is durable, before its name goes."""
    recorder = Recorder()
    erase_all(full, recorder)
    of_manifest = [name for name, path in recorder.operations if path.name == "manifest.json"]
    assert of_manifest == ["overwrite_file", "sync_file", "remove_file"] * 4


def test_overwriting_reaches_a_second_name_of_the_file(full, tmp_path):
    """What a backup by hard links shares with the cache is zeroed there too."""
    (tmp_path / "link").hardlink_to(next(full.rglob("dataset/*/manifest.json")))
    erase_all(full, Recorder())
    assert set((tmp_path / "link").read_bytes()) == {0}


def test_a_key_is_not_destroyed_under_a_reader_that_came_last(full):
    """Who opens a shard after the tokens were found unused, and before they are moved, reads on, and is told of."""
    eraser = TokenEraser(full, WatchedTokenFiles(Recorder()), {}, None)
    with eraser.alone():
        found = [each for each in eraser.found() if each.folder.name == "dataset"]
        cache = cache_in(full)
        tokens = cache.open(cache.shards()[0])
        with pytest.raises(StateError, match="a process uses the tokens"):
            eraser.erase(found[0])
    assert tokens.ids[:3].tolist() == [1, 2, 3]
    assert len(keys_in(full)) == 4


@pytest.mark.parametrize("dataset", [None, "dataset"])
def test_an_erasure_cut_short_anywhere_is_finished_by_the_next(full, tmp_path, dataset):
    """After each operation a cache has whole shards or none, and the next erasure leaves neither key nor token."""
    recorder = Recorder()
    shutil.copytree(full, tmp_path / "counted")
    erase_all(tmp_path / "counted", recorder, dataset)
    keys = keys_in(full)
    assert len(recorder.operations) > 30
    for point in range(len(recorder.operations)):
        root = tmp_path / f"{point}"
        shutil.copytree(full, root)
        with pytest.raises(CutShortError):
            erase_all(root, CutAt(point), dataset)
        assert len(cache_in(root).shards()) in (0, 2)
        erase_all(root, Recorder(), dataset)
        left = files_under(root)
        assert not any(key in data for key in keys for data in left.values())
        assert {path.rpartition("/")[2] for path in left} <= {"ERASED.json", "holdfast-token-cache.json"}
        records = [json.loads(data) for path, data in left.items() if path.endswith("ERASED.json")]
        assert sorted(record["shards"] for record in records) == [1, 2]
        shutil.rmtree(root)


def test_a_cache_whose_erasure_was_cut_short_is_filled_again(full):
    """With its old keys still waiting for the next erasure, a run finds the tokens missing and makes them again."""

    def cut_before_keys(name, path, operation):
        if name == "overwrite_file" and ".erased" in path.parts:
            raise CutShortError
        return operation()

    with pytest.raises(CutShortError):
        erase_all(full, cut_before_keys)
    assert len(keys_in(full)) == 3
    cache = cache_in(full)
    assert cache.missing("ab") == ["a", "b"]
    assert cache.open(cache.put("a", [tokens_of([[1, 2]])], {})).ids[:2].tolist() == [1, 2]
    del cache
    erase_all(full, Recorder())
    assert keys_in(full) == []
