"""The record of a run, whatever becomes of its file, beside checkpoints that hold verified copies of it."""

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.bootstrap.run_folder.folder import RunFolder
from holdfast.bootstrap.run_folder.record_file import RecordLostError, read_record, stored_record
from holdfast.bootstrap.run_reading.run_view import RunView
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from holdfast.ports.testing.snapshots import snapshot_of

SETTINGS = {"run": {"seed": 1234}, "data": {"mode": "cache"}, "model": {"kind": "decoder"}}


def begin(path):
    """Begin a run in ``path`` or continue it, with a decision; return what is told of the folder."""
    with closing(RunFolder(path)) as folder:
        folder.begin(SETTINGS)
        folder.decide("data.mode", "cache", "the tokens fit")
        folder.rules()
        folder.write()
        return list(folder.opening_remarks)


def save(path, step):
    """Save a checkpoint of ``step`` with the record."""
    data = (path / "run.json").read_bytes()
    DiskStateStore(path, Retention(10)).save(snapshot_of(step, {"model": b"weights", "run.json": data}))


@pytest.fixture
def run(tmp_path):
    begin(tmp_path / "run")
    for step in (5, 10):
        save(tmp_path / "run", step)
    return tmp_path / "run"


def contents(path):
    """Return all of the record but its history and its schema, which may be another once it was put back."""
    return {name: value for name, value in stored_record(path).items() if name not in ("history", "schema", "hash")}


def flip(data, place, now):
    assert data.count(place) == 1, place
    return data.replace(place, now)


LOST = {
    "zeros": lambda data: bytes(len(data)),
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda _: b"",
    "deep": lambda _: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "nested": lambda _: b'{"a":' * 600 + b"1" + b"}" * 600,
    "a list": lambda _: b"[]",
    "mode": lambda data: flip(data, b'"mode": "cache"', b'"mode": "cakhe"'),
    "seed": lambda data: flip(data, b"1234", b"1224"),
    "later": lambda data: flip(data, b'"schema": 2', b'"schema": 3'),
    "earlier": lambda data: flip(data, b'"schema": 2', b'"schema": 0'),
    "no hash": lambda data: flip(data, b'"hash": "', b'"hasi": "'),
}


@pytest.mark.parametrize("how", LOST)
def test_a_lost_record_is_put_back_from_the_newest_checkpoint(run, how):
    """The start says so once and names the checkpoint, nobody is told to give the run up, and the history keeps it."""
    right, file = contents(run), run / "run.json"
    file.write_bytes(LOST[how](file.read_bytes()))
    (told,) = begin(run)
    assert "run.json" in told
    assert "checkpoint-10 holds it" in told
    assert "--fresh" not in told
    assert {**contents(run), "start": None} == {**right, "start": None}
    assert [entry.get("restored_from") for entry in stored_record(run)["history"]] == ["checkpoint-10"]
    assert begin(run) == []


def test_a_record_that_is_gone_is_put_back(run):
    """A folder with checkpoints and no run.json is that of the run which they are of."""
    right = contents(run)
    (run / "run.json").unlink()
    (told,) = begin(run)
    assert told.startswith(f"{run / 'run.json'} was missing: it was put back as checkpoint-10 holds it")
    assert {**contents(run), "start": None} == {**right, "start": None}


def test_no_bit_of_the_record_is_lost_beside_a_checkpoint(run):
    """Whichever bit of run.json is another, the run goes on with what was recorded."""
    right, file = contents(run), run / "run.json"
    sound, num_told = file.read_bytes(), 0
    for bit in range(0, 8 * len(sound), 29):
        wrong = bytearray(sound)
        wrong[bit // 8] ^= 1 << bit % 8
        file.write_bytes(wrong)
        with closing(RunFolder(run)) as folder:
            num_told += len(folder.opening_remarks)
        assert contents(run) == right, (bit, wrong)
    assert num_told > 8 * len(sound) // 29 // 2


def test_a_damaged_copy_is_passed_over(run):
    """A checkpoint whose own copy is not what was saved cures nothing: an older one does, and none is moved."""
    copy = run / "checkpoints/checkpoint-10/run.json"
    copy.write_bytes(flip(copy.read_bytes(), b"1234", b"1224"))
    (run / "run.json").write_bytes(b"")
    (told,) = begin(run)
    assert "checkpoint-5 holds it" in told
    assert (run / "checkpoints/checkpoint-10").is_dir()


def test_who_only_reads_gets_the_copy_and_writes_nothing(run, caplog):
    """Commands that look at a run use the verified copy, say so, and leave the file to the run."""
    right = contents(run)
    (run / "run.json").write_bytes(b"{")
    assert {name: read_record(run)[name] for name in right} == right
    assert (run / "run.json").read_bytes() == b"{"
    (warning,) = {record.getMessage() for record in caplog.records}
    assert "run.json is damaged" in warning
    assert "what checkpoint-10 holds of it is used" in warning


def test_without_a_checkpoint_there_is_nothing_to_lose(tmp_path):
    """A damaged record without any copy is refused as before, and left as it is."""
    begin(tmp_path / "run")
    (tmp_path / "run/run.json").write_bytes(b"{")
    with pytest.raises(StateError, match=r"run\.json is damaged .*: set the folder aside with --fresh"):
        begin(tmp_path / "run")
    assert (tmp_path / "run/run.json").read_bytes() == b"{"


def test_a_record_of_a_later_version_is_none_that_is_lost(run):
    """It is no damage: the run is left to the version that wrote it."""
    record = json.loads((run / "run.json").read_bytes())
    (run / "run.json").write_text(json.dumps({**record, "schema": 3, "hash": "of another kind", "more": 1}))
    before = (run / "run.json").read_bytes()
    with pytest.raises(StateError, match="upgrade to read it"):
        begin(run)
    assert (run / "run.json").read_bytes() == before


def test_a_record_without_a_hash_is_compared_with_the_copy(run):
    """That of an earlier version goes on as it is, and gets a hash; one of which a bit has changed is put back."""
    right = contents(run)
    record = json.loads((run / "run.json").read_bytes()) | {"schema": 1}
    del record["hash"]
    (run / "run.json").write_text(json.dumps(record))
    assert begin(run) == []
    assert json.loads((run / "run.json").read_bytes())["hash"]
    for part, wrong, name in (
        ("auto", {"data.mode": record["auto"]["data.mode"] | {"value": "cakhe"}}, "data.mode"),
        ("rules", record["rules"] | {"row_order": 1}, "the rule row_order"),
    ):
        (run / "run.json").write_text(json.dumps(record | {part: wrong}))
        (told,) = begin(run)
        assert told.startswith(f"{name} in {run / 'run.json'} is not what checkpoint-10 holds")
        assert contents(run)[part] == right[part]


def test_a_copied_folder_whose_record_is_lost_is_a_run_of_its_own(run, tmp_path):
    """The record that is put back names the original, so the copy gets another id as any copy does."""
    import shutil

    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy/run.json").write_bytes(b"")
    lost, is_copy = begin(tmp_path / "copy")
    assert "checkpoint-10 holds it" in lost
    assert is_copy.startswith(f"this is a copy of {run}")
    assert stored_record(tmp_path / "copy")["id"] != stored_record(run)["id"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("runs/handbok", r"runs/handbok is not a run folder: there is no such folder; did you mean runs/handbook\?"),
        ("handbok", r"handbok is not a run folder: there is no such folder; did you mean runs/handbook\?"),
        ("far/away", "far/away is not a run folder: there is no such folder$"),
        ("merged", "merged is not a run folder: it is the folder of a model: name the run that it comes from"),
        ("adapters", "adapters is not a run folder: it is the folder of a model"),
        ("runs", r"runs is not a run folder: it has no run\.json$"),
    ],
)
@pytest.mark.parametrize("reader", [read_record, RunView])
def test_a_folder_that_is_no_run_is_told_by_what_it_is(tmp_path, monkeypatch, name, said, reader):
    """A missing folder is named with the one that was probably meant, and an exported model as such."""
    monkeypatch.chdir(tmp_path)
    begin(tmp_path / "runs/handbook")
    for file in ("merged/config.json", "adapters/adapter_config.json"):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text("{}")
    with pytest.raises(StateError, match=f"^{said}"):
        reader(Path(name))


def test_a_record_of_gigabytes_is_not_read(tmp_path):
    """A file that no run can have written is damaged, and costs no memory."""
    (tmp_path / "run.json").touch()
    os.truncate(tmp_path / "run.json", 3 << 30)
    with pytest.raises(RecordLostError, match=r"damaged \(it has 3221225472 bytes\)"):
        stored_record(tmp_path)
