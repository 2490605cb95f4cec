"""Erasing checkpoints of a run: what is chosen, what is refused, and what is told of it afterwards."""

from __future__ import annotations

import json
import os

import pytest

from holdfast.adapters.key_provider.memory import MemoryKeyProvider
from holdfast.adapters.state_store.archive.checkpoint_archive import CheckpointArchive
from holdfast.adapters.state_store.archive.lease import ArchiveLease
from holdfast.adapters.state_store.archive.local_object_store import LocalObjectStore
from holdfast.adapters.state_store.checkpoint_encryption import CheckpointEncryption
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.bootstrap.cli.main import main
from holdfast.bootstrap.run_folder.folder import RunFolder
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.checkpoints.retention import Retention
from holdfast.ports.testing.snapshots import snapshot_of

KEY = b"\x01" * 32


@pytest.fixture
def run(tmp_path):
    """Return the folder of a run with an archive, and no checkpoint yet."""
    settings = load_settings([], [f"state_store.archive.url={tmp_path / 'archive'}"], {}).settings
    folder = RunFolder(tmp_path / "run")
    folder.begin(dump_settings(settings))
    folder.write()
    folder.close()
    return tmp_path / "run"


@pytest.fixture
def save(run, tmp_path):
    """Return a function that saves encrypted checkpoints of some steps, or plain ones, and copies some of them."""

    def save_steps(*steps, sealed=True, copied=()):
        encryption = CheckpointEncryption(MemoryKeyProvider(KEY), tmp_path) if sealed else None
        store = DiskStateStore(run, Retention(99), encryption=encryption)
        objects = LocalObjectStore(tmp_path / "archive/default")
        lease = ArchiveLease(objects, say=lambda _: None)
        assert lease.acquire()
        for step in steps:
            store.save(snapshot_of(step, {"model": b"x" * 50}))
            if step in copied:
                CheckpointArchive(objects, lease=lease).put(run / f"checkpoints/checkpoint-{step}")
        lease.release()

    return save_steps


def left(run):
    """Return the steps on the disk and in the archive."""
    places = (run / "checkpoints", run.parent / "archive/default")
    return [[int(path.name.rpartition("-")[2]) for path in sorted(place.glob("checkpoint-*"))] for place in places]


def audited(run):
    path = run / "audit.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(entry["event"], entry["details"].get("step")) for entry in map(json.loads, lines)]


def test_nothing_is_erased_without_yes(run, save, capsys):
    """The command tells what it would erase, on the disk and in the archive, and leaves it."""
    save(1, 2, 3, copied=(2, 3))
    assert main(["erase", str(run)]) == 0
    told = capsys.readouterr().out
    assert [line.rpartition("/")[2] for line in told.splitlines()[:-1]] == [f"checkpoint-{n}" for n in (1, 2, 2)]
    assert "nothing is erased without --yes" in told
    assert left(run) == [[1, 2, 3], [2, 3]]
    assert audited(run) == []


def test_the_newest_and_pinned_ones_are_erased_by_name_only(run, save, capsys):
    """Without a step they stay, also their copies; each that goes is an entry of the audit."""
    save(1, 2, 3, copied=(1, 2, 3))
    assert main(["pin", str(run), "1"]) == 0
    assert main(["erase", str(run), "--yes"]) == 0
    assert left(run) == [[1, 3], [1, 3]]
    assert main(["erase", str(run), "--yes"]) == 4
    assert "erased by their steps only" in capsys.readouterr().err
    assert main(["erase", str(run), "1", "3", "--yes"]) == 0
    assert left(run) == [[], []]
    assert audited(run) == [("CheckpointErased", step) for step in (2, 2, 1, 3, 1, 3)]
    assert main(["audit", str(run)]) == 0


def test_plain_checkpoints_are_refused_with_the_reason(run, save, capsys):
    """What an SSD may remember is deleted only if that is asked for in so many words."""
    save(1, 2, sealed=False)
    assert main(["erase", str(run), "1", "--yes"]) == 4
    assert "is not encrypted, and data on an SSD cannot be overwritten" in capsys.readouterr().err
    assert left(run)[0] == [1, 2]
    assert main(["erase", str(run), "1", "--yes", "--unencrypted"]) == 0
    assert left(run)[0] == [2]


def test_what_is_not_there_is_told(run, save, capsys):
    """A step that has nothing to erase ends the command before anything is erased."""
    save(1, 2)
    assert main(["erase", str(run), "1", "7", "--yes"]) == 4
    assert "holds no checkpoint of step 7 to erase" in capsys.readouterr().err
    assert left(run)[0] == [1, 2]


def test_a_run_that_trains_is_left_alone(run, save, capsys):
    """While another process has the run folder, nothing is erased."""
    save(1, 2)
    folder = RunFolder(run)
    assert main(["erase", str(run), "--yes"]) == 4
    assert "another process trains" in capsys.readouterr().err
    folder.close()
    assert left(run)[0] == [1, 2]


def test_who_may_not_delete_may_not_erase(run, save, capsys, monkeypatch):
    """Without the role, by the environment, nothing is erased, and the attempt is recorded."""
    save(1, 2)
    monkeypatch.setenv("HOLDFAST_STATE_STORE__ROLES", "[read, write, key]")
    assert main(["erase", str(run), "--yes"]) == 2
    assert "needs the role delete" in capsys.readouterr().err
    assert left(run)[0] == [1, 2]
    assert audited(run) == [("AccessRefused", None)]


def test_what_lies_in_quarantine_is_erased_too(run, save):
    """A damaged checkpoint that was set aside still has its key, which goes with the others of its step."""
    save(1, 2)
    (run / "checkpoints/checkpoint-1").rename(run / "quarantine/checkpoint-1.wrong-hash")
    assert main(["erase", str(run), "--yes"]) == 0
    assert [path.name for path in (run / "quarantine").iterdir()] == []
    assert list(run.glob("erased/*/MANIFEST.json")) == []
    assert (run / "erased/checkpoint-1.wrong-hash/ERASED.json").exists()


def test_copies_of_another_run_are_left_alone(run, save, capsys):
    """An archive that another run has claimed ends the command before anything is erased."""
    save(1, 2, copied=(1,))
    (run.parent / "archive/default/run").write_text("another")
    assert main(["erase", str(run), "--yes"]) == 4
    assert "holds copies of another run" in capsys.readouterr().err
    assert left(run) == [[1, 2], [1]]


def test_inspect_says_what_was_erased(run, save, capsys):
    """The run's report lists it, its old path and its new one say so, and a run with nothing else says that too."""
    save(1, 2)
    assert main(["erase", str(run), "1", "--yes"]) == 0
    capsys.readouterr()
    assert main(["inspect", str(run)]) == 0
    assert "erased: checkpoint-1 2" in capsys.readouterr().out
    assert main(["inspect", str(run), "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)["erased"]] == ["checkpoint-1"]
    for place in ("checkpoints", "erased"):
        assert main(["inspect", str(run / place / "checkpoint-1")]) == 4
        assert "erased: it was erased at 2" in capsys.readouterr().out
    assert main(["erase", str(run), "2", "--yes"]) == 0
    assert main(["inspect", str(run)]) == 4
    assert "holds no checkpoints but 2 erased" in capsys.readouterr().err


RECORDS = ("ledger-calls/000000000001.call", "ledger.sqlite", "ledger.sqlite-wal", "rejected.jsonl")


def records_in(run):
    """Write each record of single documents that a run may have, and two files beside them; return the former."""
    (run / "ledger-calls").mkdir()
    for name in (*RECORDS, "rejected.rank1.jsonl", "rejected-by-me.jsonl", "events.jsonl"):
        (run / name).write_text("a record")
    return [str(run / name) for name in (*RECORDS, "rejected.rank1.jsonl")]


def test_records_of_documents_are_erased_with_the_checkpoints(run, save, capsys):
    """Without a step they are listed, audited one by one and overwritten; other files of the folder stay."""
    save(1, 2)
    paths = records_in(run)
    (run.parent / "link").hardlink_to(run / "rejected.jsonl")
    assert main(["erase", str(run)]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[1:-1] == [f"would erase {path} (record of the data)" for path in paths]
    assert main(["erase", str(run), "--yes"]) == 0
    assert "an SSD may hold older copies" in capsys.readouterr().out
    assert sorted(path.name for path in run.glob("*.jsonl")) == ["audit.jsonl", "events.jsonl", "rejected-by-me.jsonl"]
    assert [path.name for path in run.glob("ledger*/*")] + [path.name for path in run.glob("ledger.*")] == []
    assert set((run.parent / "link").read_bytes()) == {0}
    assert audited(run) == [("CheckpointErased", 1), *[("DataRecordErased", None)] * 5]


def test_records_of_documents_are_kept_if_steps_are_named(run, save):
    """A step says which checkpoints go, and the records belong to no step."""
    save(1, 2)
    paths = records_in(run)
    assert main(["erase", str(run), "1", "--yes"]) == 0
    assert all(map(os.path.exists, paths))


def test_records_of_documents_are_erased_without_a_checkpoint_to_erase(run, save, capsys):
    """The newest checkpoint stays, and a link in the place of a record is refused before anything is erased."""
    save(1)
    records_in(run)
    (run / "rejected.jsonl").rename(run.parent / "elsewhere")
    (run / "rejected.jsonl").symlink_to(run.parent / "elsewhere")
    assert main(["erase", str(run), "--yes"]) == 4
    assert "rejected.jsonl is a link, which is not followed" in capsys.readouterr().err
    (run / "rejected.jsonl").unlink()
    assert (run / "ledger.sqlite").exists()
    assert main(["erase", str(run), "--yes"]) == 0
    assert left(run)[0] == [1]
    assert not (run / "ledger.sqlite").exists()
