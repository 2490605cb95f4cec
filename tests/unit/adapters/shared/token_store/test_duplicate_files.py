import os
import threading

import numpy as np
import pytest

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.shared.token_store.duplicate_files import DUPLICATES, DuplicateFiles
from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations
from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
from holdfast.adapters.shared.token_store.token_erasure import TokenEraser
from holdfast.application.data.document_keys import KeysInParts
from holdfast.domain.errors import ConfigurationError, StateError

KEY, OTHER = b"\x01" * 32, b"\x02" * 32
ARRAYS = {"keys": np.arange(12, dtype=np.uint64).reshape(3, 4), "sizes": np.array([1, 2], np.int64)}


def files_in(folder, key=None):
    return DuplicateFiles(folder, None if key is None else ShardEncryption(MemoryKeyProvider(key)))


def lists(arrays):
    return None if arrays is None else {name: array.tolist() for name, array in arrays.items()}


@pytest.mark.parametrize("key", [None, KEY])
def test_stored_arrays_are_loaded_by_another_object(tmp_path, key):
    """Arrays are found by group and name, until their group is removed."""
    files_in(tmp_path, key).store("a", "one", ARRAYS)
    files_in(tmp_path, key).store("b", "one", ARRAYS)
    again = files_in(tmp_path, key)
    assert lists(again.load("a", "one")) == lists(ARRAYS)
    assert again.load("a", "two") is None
    again.remove("a")
    assert again.load("a", "one") is None
    assert lists(again.load("b", "one")) == lists(ARRAYS)
    again.remove("a")
    again.store("a", "one", ARRAYS)
    assert lists(files_in(tmp_path, key).load("a", "one")) == lists(ARRAYS)


@pytest.mark.parametrize("key", [None, KEY])
def test_a_damaged_file_counts_as_missing(tmp_path, key):
    """A file with a wrong byte, or without its end, is as if it were not there."""
    for change in (lambda data: data[:-3] + b"\xff" + data[-2:], lambda data: data[:-9]):
        files_in(tmp_path, key).store("a", "one", {"keys": np.full(9, 7, np.uint64)})
        (path,) = tmp_path.rglob("one.safetensors")
        path.write_bytes(change(path.read_bytes()))
        assert files_in(tmp_path, key).load("a", "one") is None


def test_encrypted_files_show_nothing_and_need_their_key(tmp_path):
    """Nothing of the arrays lies in the folder, and another key is refused in a sentence."""
    canary = np.frombuffer(b"a canary" * 8, np.uint64)
    files_in(tmp_path, KEY).store("a", "one", {"keys": canary})
    content = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"canary" not in content
    assert b"keys" not in content.replace(b"key_id", b"").replace(b"wrapped_key", b"")
    with pytest.raises(StateError, match="cannot be decrypted"):
        files_in(tmp_path, OTHER).load("a", "one")


def test_erasure_destroys_the_key(tmp_path):
    """After the erasure of all tokens, or of one dataset, neither key nor arrays are there."""
    files_in(tmp_path, KEY).store("a", "one", ARRAYS)
    eraser = TokenEraser(tmp_path, TokenFileOperations(), {"user": "ada"}, None)
    with eraser.alone():
        for found in eraser.found():
            eraser.erase(found)
    assert not list(tmp_path.rglob("key.json"))
    assert not list(tmp_path.rglob("*.safetensors"))
    assert files_in(tmp_path, KEY).load("a", "one") is None


def test_two_objects_share_one_key(tmp_path):
    """Processes that begin at the same time do not write two keys."""
    stores = [files_in(tmp_path, KEY) for _ in range(4)]
    threads = [
        threading.Thread(target=store.store, args=("a", str(number), ARRAYS)) for number, store in enumerate(stores)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(lists(files_in(tmp_path, KEY).load("a", str(number))) == lists(ARRAYS) for number in range(4))


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    """Nothing is written into a folder that is no token cache."""
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ConfigurationError, match="Holdfast did not write"):
        files_in(tmp_path).store("a", "one", ARRAYS)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_full_disk_is_an_error_in_a_sentence(tmp_path, monkeypatch):
    """An error of the disk is a state error that names the folder."""
    files_in(tmp_path).store("a", "one", ARRAYS)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TokenFileOperations, "write_file", full)
    with pytest.raises(StateError, match=DUPLICATES.replace(".", r"\.")):
        files_in(tmp_path).store("a", "two", ARRAYS)


@pytest.mark.parametrize("key", [None, KEY])
def test_keys_are_read_once_row_by_row(tmp_path, monkeypatch, key):
    """All columns of the keys of a search take the bytes of the keys once, encrypted or not, after one verification."""
    files = files_in(tmp_path, key)
    bands = np.random.default_rng(0).integers(0, 2**63, (16, 30_000), np.uint64)
    for number in range(3):
        own = {"bands": bands[:, number * 10_000 : (number + 1) * 10_000], "positions": np.arange(10_000)}
        files.store("group", str(number), own)
    keys = KeysInParts(files, [[("group", "0"), ("group", "1")], [("group", "2")]], [[10_000, 10_000], [10_000]])
    assert (keys.column("bands", 3) == bands[3]).all()
    num_bytes, pread = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *asked: num_bytes.append(len(data := pread(*asked))) or data)
    for row in range(16):
        assert (keys.column("bands", row) == bands[row]).all()
    assert bands.nbytes <= sum(num_bytes) < 1.5 * bands.nbytes
    some = np.array([1, 9_999, 10_000, 29_999])
    assert keys.some("bands", 5, some).tolist() == bands[5][some].tolist()
    assert keys.positions(some).tolist() == [1, 9_999, 0, 9_999]


def test_a_file_that_is_cut_while_it_is_used_harms_no_arrays(tmp_path):
    """What was loaded stays as it was when the file is truncated, and the file then counts as missing."""
    files = DuplicateFiles(tmp_path)
    files.store("group", "name", {"keys": np.arange(100_000, dtype=np.uint64), "few": np.arange(3, dtype=np.int64)})
    loaded = files.load("group", "name")
    assert set(files.load("group", "name", ["few"])) == {"few"}
    [path] = tmp_path.rglob("name.safetensors")
    os.truncate(path, 500)
    assert (loaded["keys"] == np.arange(100_000)).all()
    assert files.load("group", "name") is None
