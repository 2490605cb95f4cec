"""What a process may do with checkpoints, and that it is told where it may not."""

from __future__ import annotations

import json

import pytest

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
from holdfast.adapters.state_store.archive.lease import ArchiveLease
from holdfast.adapters.state_store.archive.local_object_store import LocalObjectStore
from holdfast.adapters.state_store.checkpoint_encryption import CheckpointEncryption
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.store_folder import AccessGuard
from holdfast.adapters.state_store.tiered import TieredStateStore
from holdfast.bootstrap.adapter_choice.encryption_keys import own_roles
from holdfast.bootstrap.run import build
from holdfast.bootstrap.run_folder.run_audit import Audit
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.checkpoints.retention import Retention, Role
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.testing.snapshots import snapshot_of


class Heard(list):
    """Doors that tell here what was deleted and refused."""

    def guard(self, *without):
        return AccessGuard([role for role in Role if role not in without], lambda *entry: self.append(entry))


@pytest.fixture
def heard():
    return Heard()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_each_deletion_is_recorded_before_it_is_done(tmp_path):
    """Retention tells the name, the reason and the role of each checkpoint while that is still there."""
    told = []

    def record(event, details):
        told.append((event, details, names(tmp_path / "checkpoints")))

    store = DiskStateStore(tmp_path, Retention(1), guard=AccessGuard(record=record))
    for step in (1, 2):
        store.save(snapshot_of(step, {}))
    details = {"name": "checkpoint-1", "reason": "retention", "role": "delete"}
    assert told == [("CheckpointDeleted", details, ["checkpoint-1", "checkpoint-2"])]
    assert names(tmp_path / "checkpoints") == ["checkpoint-2"]


def test_nothing_is_deleted_that_cannot_be_recorded(tmp_path):
    """A save whose retention cannot be written down succeeds, and deletes nothing."""
    failure = StateError("no space left")

    def refuse(_event, _details):
        raise failure

    store = DiskStateStore(tmp_path, Retention(1), guard=AccessGuard(record=refuse))
    for step in (1, 2):
        store.save(snapshot_of(step, {}))
    assert names(tmp_path / "checkpoints") == ["checkpoint-1", "checkpoint-2"]


def test_who_may_not_delete_leaves_everything(tmp_path, heard):
    """Neither what retention lets go, on the disk and in the archive, nor what a crash left, is deleted."""
    objects = LocalObjectStore(tmp_path / "archive")
    lease = ArchiveLease(objects, say=lambda _: None)
    guard = heard.guard(Role.DELETE)
    store = TieredStateStore(
        DiskStateStore(tmp_path / "run", Retention(1), guard=guard),
        CheckpointArchive(objects, lease=lease),
        lease,
        Retention(1),
        tell=lambda _: None,
        patience=30,
    )
    objects.create("checkpoint-9/model", b"cut short")
    with store.archiving():
        for step in (1, 2):
            store.save(snapshot_of(step, {"model": b"x"}))
            (tmp_path / "run/.trash/left").mkdir(exist_ok=True)
            store.flush()
    assert names(tmp_path / "run/checkpoints") == ["checkpoint-1", "checkpoint-2"]
    assert names(tmp_path / "run/.trash") == ["left"]
    assert {"checkpoint-1", "checkpoint-2", "checkpoint-9"} <= set(names(tmp_path / "archive"))
    assert heard == []


@pytest.mark.parametrize(("role", "what"), [(Role.READ, "reading"), (Role.KEY, "opening"), (Role.WRITE, "saving")])
def test_what_a_role_lacks_is_one_sentence_and_a_record(tmp_path, heard, role, what):
    """Reading, opening what is encrypted, and saving are refused each without its role, and the refusal is recorded."""
    encryption = CheckpointEncryption(MemoryKeyProvider(b"\x01" * 32), tmp_path)
    DiskStateStore(tmp_path / "run", Retention(2), encryption=encryption).save(snapshot_of(1, {"model": b"x"}))
    store = DiskStateStore(tmp_path / "run", Retention(2), guard=heard.guard(role))
    act = {Role.WRITE: lambda: store.save(snapshot_of(2, {}))}.get(role, store.load)
    with pytest.raises(ConfigurationError, match=f"{what} .*checkpoint-.* needs the role {role}.*add that role"):
        act()
    ((event, details),) = heard
    assert (event, details["role"]) == ("AccessRefused", str(role))
    assert names(tmp_path / "run/checkpoints") == ["checkpoint-1"]


def test_who_may_not_read_can_begin(tmp_path, heard):
    """Where there is nothing to read yet, a store answers so without the role."""
    assert DiskStateStore(tmp_path, Retention(2), guard=heard.guard(Role.READ)).load().info is None
    assert heard == []


@pytest.mark.parametrize(
    ("roles", "more", "role"),
    [("[read]", [], "write"), ("[read, write]", ["state_store.encryption.key_from=env:NO_SUCH_KEY"], "key")],
)
def test_a_run_that_could_not_save_does_not_begin(tmp_path, roles, more, role):
    """Without the role to write, or to use the key that it is to write by, a run is refused, which the audit tells."""
    settings = load_settings([], [f"run.dir={tmp_path}", f"state_store.roles={roles}", *more], {}).settings
    directory = settings.run.directory
    directory.mkdir(exist_ok=True)
    with pytest.raises(ConfigurationError, match=f"^training .*needs the role {role}"):
        build(settings)
    (line,) = (directory / "audit.jsonl").read_text().splitlines()
    assert (json.loads(line)["event"], json.loads(line)["details"]["role"]) == ("AccessRefused", role)
    assert names(directory) == ["audit.jsonl"]


def test_a_refusal_is_told_even_where_it_cannot_be_recorded(tmp_path):
    """While the run that trains holds the audit, somebody else is refused all the same."""
    audit = Audit(tmp_path)
    with audit.held(), pytest.raises(ConfigurationError, match="needs the role read"):
        AccessGuard([], Audit(tmp_path).record).require(Role.READ, "reading it")


def test_a_command_has_the_roles_of_its_environment():
    """Who asks decides, not who trained: the variable names the roles, and without it there are all."""
    assert list(own_roles({"HOLDFAST_DATA__KIND": "files"})) == [str(role) for role in Role]
    assert list(own_roles({"HOLDFAST_STATE_STORE__ROLES": "[read, key]"})) == ["read", "key"]
    with pytest.raises(ConfigurationError, match="roles"):
        own_roles({"HOLDFAST_STATE_STORE__ROLES": "[sudo]"})
