"""Checkpoints that are encrypted where they lie."""

import base64
import gc
import json
import shutil

import pytest

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.shared.encryption.streaming_aead import AuthenticationError
from holdfast.adapters.state_store.checkpoint_encryption import CheckpointEncryption
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.manifest import commit_of
from holdfast.bootstrap.adapter_choice.encryption_keys import key_provider
from holdfast.configs.sections.state_store import EncryptionSettings
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.testing.snapshots import snapshot_of

CANARY = b"a canary that no disk may see"
KEY, OTHER = b"\x01" * 32, b"\x02" * 32


@pytest.fixture
def scratch(tmp_path):
    """Return the place for decrypted files."""
    folder = tmp_path / "memory"
    folder.mkdir()
    return folder


@pytest.fixture
def open_store(tmp_path, scratch):
    """Return a function that opens the store with these keys, the first to write with; with none it is a plain one."""

    def open_with(*keys):
        encryption = CheckpointEncryption(MemoryKeyProvider(keys[0], old=keys[1:]), scratch) if keys else None
        return DiskStateStore(tmp_path / "run", Retention(5), encryption=encryption)

    return open_with


def files_under(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def recommit(folder, change):
    """Rewrite the manifest and vouch for it, as somebody could who may write the folder but has no key."""
    manifest = json.loads((folder / "MANIFEST.json").read_bytes())
    change(manifest)
    data = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    (folder / "MANIFEST.json").write_bytes(data)
    (folder / "COMMIT").write_bytes(commit_of(data))


def test_no_plaintext_comes_to_rest(tmp_path, open_store, scratch):
    """No file of the run folder holds what was saved, and what a load decrypts is private and goes with its result."""
    store = open_store(KEY)
    store.save(snapshot_of(1, {"model": CANARY * 100, "inner/rng": CANARY}))
    assert files_under(tmp_path / "run")
    assert not any(CANARY in path.read_bytes() for path in files_under(tmp_path / "run"))
    loaded = store.load()
    folder = loaded.folder
    assert (folder / "model").read_bytes() == CANARY * 100
    assert (folder / "inner/rng").read_bytes() == CANARY
    assert folder.stat().st_mode & 0o077 == 0
    del loaded
    gc.collect()
    assert files_under(scratch) == []


def test_each_checkpoint_has_a_key_of_its_own(tmp_path, open_store):
    """Equal states are stored as other bytes, under other wrapped keys."""
    store = open_store(KEY)
    for step in (1, 2):
        store.save(snapshot_of(step, {"model": CANARY}))
    folders = [tmp_path / f"run/checkpoints/checkpoint-{step}" for step in (1, 2)]
    assert len({(folder / "model").read_bytes() for folder in folders}) == 2
    keys = {json.loads((folder / "MANIFEST.json").read_bytes())["encryption"]["wrapped_key"] for folder in folders}
    assert len(keys) == 2


@pytest.mark.parametrize("keys", [(), (OTHER,)], ids=["no key", "another key"])
def test_without_the_key_nothing_is_set_aside(tmp_path, open_store, keys):
    """A store that lacks the key says which one is missing and leaves the checkpoint, which is good, in its place."""
    open_store(KEY).save(snapshot_of(1, {"model": CANARY}))
    key_id = json.loads((tmp_path / "run/checkpoints/checkpoint-1/MANIFEST.json").read_bytes())["encryption"]["key_id"]
    with pytest.raises(StateError, match=key_id):
        open_store(*keys).load()
    assert open_store(KEY).load().info.progress.step == 1


def test_keys_are_changed_while_a_run_goes_on(open_store):
    """Plain checkpoints, and those of the key before, are read by a store that writes with a new one."""
    open_store().save(snapshot_of(1, {"model": b"plain"}))
    stores = open_store(KEY), open_store(OTHER, KEY), open_store(OTHER)
    read = []
    for step, store in enumerate(stores, start=2):
        loaded = store.load()
        read.append((loaded.folder / "model").read_bytes())
        store.save(snapshot_of(step, {"model": b"written at %d" % step}))
    assert read == [b"plain", b"written at 2", b"written at 3"]


def test_files_cannot_be_put_in_each_other_s_place(tmp_path, open_store):
    """T20: a file under another's name or from another checkpoint is refused, though manifest and hashes agree."""
    store = open_store(KEY)
    for step in (1, 2):
        store.save(snapshot_of(step, {"a": b"a" * 50, "b": b"b" * 50}))
    first, second = (tmp_path / f"run/checkpoints/checkpoint-{step}" for step in (1, 2))

    def swap(manifest):
        one, other = manifest["files"]
        one["hash"], other["hash"] = other["hash"], one["hash"]

    (second / "a").rename(second / "c")
    (second / "b").rename(second / "a")
    (second / "c").rename(second / "b")
    recommit(second, swap)
    with pytest.raises(AuthenticationError):
        store.load()
    shutil.rmtree(second)
    hashes = {}
    recommit(first, lambda manifest: hashes.update({file["path"]: file["hash"] for file in manifest["files"]}))
    store.save(snapshot_of(2, {"a": b"x" * 50, "b": b"b" * 50}))
    shutil.copy(first / "a", second / "a")

    def take_over(manifest):
        manifest["files"][0]["hash"] = hashes["a"]

    recommit(second, take_over)
    with pytest.raises(AuthenticationError):
        store.load()


def test_a_place_that_cannot_hold_the_files_is_a_sentence(tmp_path, open_store, scratch):
    """Where nothing can be decrypted to, the setting is named, and the checkpoint stays."""
    store = open_store(KEY)
    store.save(snapshot_of(1, {"model": CANARY}))
    scratch.rmdir()
    with pytest.raises(StateError, match=r"encryption\.scratch"):
        store.load()
    assert len(store.list()) == 1


def test_settings_name_the_keys(monkeypatch, tmp_path):
    """env: and file: name keys, of one kind in a run; anything else is the user's mistake, in one sentence."""
    monkeypatch.setenv("NEW_KEY", base64.b64encode(KEY).decode())
    monkeypatch.setenv("OLD_KEY", base64.b64encode(OTHER).decode())
    old = key_provider(EncryptionSettings(key_from="env:OLD_KEY"), "here").wrap(b"data", b"why")
    both = key_provider(EncryptionSettings(key_from="env:NEW_KEY", old_keys_from=["env:OLD_KEY"]), "here")
    assert both.unwrap(old, b"why") == b"data"
    path = tmp_path / "key"
    path.write_bytes(bytes(range(100, 132)))
    path.chmod(0o600)
    in_file = key_provider(EncryptionSettings(key_from=f"file:{path}"), "here")
    assert in_file.unwrap(in_file.wrap(b"data", b"why"), b"why") == b"data"
    for settings in (
        {"key_from": "env:NOT_SET"},
        {"key_from": "kms:somewhere"},
        {"key_from": "env:NEW_KEY", "old_keys_from": [f"file:{path}"]},
    ):
        with pytest.raises(ConfigurationError):
            key_provider(EncryptionSettings(**settings), "here")
