"""What `inspect` tells of hand-made stores, and that it leaves them as they were."""

from __future__ import annotations

import json
import shutil

import pytest
from blake3 import blake3

from holdfast.adapters.shared.files.file_operations import FileOperations
from holdfast.adapters.state_store.checkpoint_inspection import CheckpointInspector
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.bootstrap.cli.main import main
from holdfast.domain.checkpoints.retention import Retention
from holdfast.ports.testing.state_store import snapshot_of

FILES = {"model": b"weights" * 1000, "rng/rank-00000": b"r"}


@pytest.fixture
def root(tmp_path):
    """Return a run folder with the checkpoints 1, 2 and 3."""
    store = DiskStateStore(tmp_path / "run", Retention(5))
    for step in (1, 2, 3):
        store.save(snapshot_of(step, FILES, reason="preempt" if step == 3 else "periodic"))
    return tmp_path / "run"


@pytest.fixture
def inspect(capsys):
    """Return a function that runs the command and returns exit code, standard output and standard error."""

    def run(*arguments):
        code = main(["inspect", *map(str, arguments)])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def look(inspect):
    """Return a function that runs the command with --json and returns exit code and object."""

    def run(*arguments):
        code, out, err = inspect(*arguments, "--json")
        assert err == ""
        return code, json.loads(out)

    return run


def folder_of(root, step=3):
    return root / f"checkpoints/checkpoint-{step}"


def states(report):
    return {checkpoint["step"]: checkpoint["state"] for checkpoint in report["checkpoints"]}


def flaws(report):
    return {(problem["flaw"], problem["file"]) for problem in report["problems"]}


def commit(folder, **changes):
    """Give ``folder`` a manifest with ``changes`` and a COMMIT to it, as whoever writes a hostile one would."""
    record = json.loads((folder / "MANIFEST.json").read_bytes()) | changes
    manifest = json.dumps(record).encode()
    (folder / "MANIFEST.json").write_bytes(manifest)
    (folder / "COMMIT").write_text(f"blake3:{blake3(manifest).hexdigest()}\n")


def everything_under(folder):
    return {
        path.relative_to(folder): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else None)
        for path in (folder, *folder.rglob("*"))
    }


def test_a_good_run_is_told_oldest_first(root, inspect, look):
    """Each checkpoint has its row with step, tokens, reason, time of capture and size; the newest is resumed."""
    commit(folder_of(root), saved_at=1e9)  # the times of files are those of a copy
    code, out, err = inspect(root)
    rows = [line.split() for line in out.splitlines() if line.strip()[:1].isdigit()]
    assert (code, err) == (0, "")
    assert [row[:3] for row in rows] == [
        ["1", "1,000", "periodic"],
        ["2", "2,000", "periodic"],
        ["3", "3,000", "preempt"],
    ]
    assert rows[-1][3:] == ["bitwise", "2001-09-09", "01:46:40", "6.8", "KiB", "verified", "-", "-", "-", "-"]
    assert out.endswith("a resume would take checkpoint-3\n")
    code, report = look(root)
    assert (code, report["sound"], report["resume"]["takes"]) == (0, True, "checkpoint-3")
    assert report["checkpoints"][2] == {
        "name": "checkpoint-3",
        "step": 3,
        "tokens": 3000,
        "reason": "preempt",
        "contract": "bitwise",
        "saved": "2001-09-09T01:46:40+00:00",
        "bytes": 7001,
        "key": None,
        "best": False,
        "pinned": False,
        "tiers": ["disk"],
        "state": "verified",
        "problems": [],
        "loss": None,
        "evaluation": None,
        "suites": {},
    }


def test_figures_are_those_known_at_the_step(root, look, inspect):
    """The loss is the step's own, the evaluation the last one up to it, and a torn line or another value is none."""
    lines = [
        '{"step": 1, "loss": 3.5}\n{"step": 1, "eval_loss": 3.25, "eval_bits_per_byte": 1.5}\n',
        '{"step": 2, "loss": "NaN"}\n{"step": 3, "loss": {}}\n[]\n',
        '{"step": 3, "eval_loss": 3.0, "eval_bits_per_byte": "Infinity"}\n',
        '{"step": 4, "eval_loss": 1.0}\n{"step": 3, "lo',
    ]
    (root / "metrics.jsonl").write_text("".join(lines))
    first = {"step": 1, "loss": 3.25, "bits_per_byte": 1.5}
    found = [(entry["loss"], entry["evaluation"]) for entry in look(root)[1]["checkpoints"]]
    third = {"step": 3, "loss": 3.0, "bits_per_byte": "Infinity"}
    assert found == [(3.5, first), ("NaN", first), (None, third)]
    assert "verified  3.5000     3.2500     1.5000        1" in inspect(root)[1]


def test_a_flipped_byte_is_found(root, inspect, look):
    """The checkpoint is named with its file, the others verify, and a resume takes the one before it."""
    (folder_of(root) / "model").write_bytes(b"Weights" * 1000)
    code, report = look(root)
    assert (code, report["sound"], report["resume"]["takes"]) == (4, False, "checkpoint-2")
    assert states(report) == {1: "verified", 2: "verified", 3: "wrong-hash"}
    assert flaws(report["checkpoints"][2]) == {("wrong-hash", "model")}
    code, out, _ = inspect(root)
    assert code == 4
    assert "checkpoint-3 wrong-hash: 'model' does not have the bytes that were saved" in out


def test_quick_hashes_nothing(root, look, inspect):
    """With --quick a flipped byte goes unseen and the word is `complete`; names and sizes are compared."""
    (folder_of(root) / "model").write_bytes(b"Weights" * 1000)
    (folder_of(root, 1) / "model").write_bytes(b"short")
    code, report = look(root, "--quick")
    assert (code, states(report)) == (4, {1: "wrong-size", 2: "complete", 3: "complete"})
    assert inspect(root, "--quick")[1].endswith("a resume would take checkpoint-3, if its bytes verify\n")


def test_each_defect_of_a_checkpoint_is_named(root, inspect, look):
    """A missing, an extra, a cut and a changed file are all told, each in its row, and sound ones verify."""
    store = DiskStateStore(root, Retention(5))
    store.save(snapshot_of(4, FILES | {"changed": b"was", "cut": b"longer", "gone": b""}))
    folder = folder_of(root, 4)
    (folder / "changed").write_bytes(b"now")
    (folder / "cut").write_bytes(b"")
    (folder / "gone").unlink()
    (folder / "more").write_bytes(b"")
    wanted = {"changed": "wrong-hash", "cut": "wrong-size", "gone": "missing-file", "more": "extra-file"}
    code, report = look(folder)
    found = {file["path"]: file["state"] for file in report["files"]}
    assert code == 4
    assert found == wanted | {"model": "verified", "rng/rank-00000": "verified"}
    assert flaws(report) == {(flaw, path) for path, flaw in wanted.items()}
    out = inspect(folder)[1]
    assert all(f"{flaw}: '{path}'" in out for path, flaw in wanted.items())
    assert "checkpoint-4 has 1 more" in inspect(root)[1]


def test_a_file_in_place_of_a_checkpoint_is_named(root, look):
    """A plain file with the name of a checkpoint is a defect of that one, and the others are told."""
    folder_of(root, 4).touch()
    code, report = look(root)
    assert code == 4
    assert states(report) == {1: "verified", 2: "verified", 3: "verified", 4: "not-a-folder"}


def test_a_checkpoint_folder_alone(root, tmp_path, inspect, look):
    """One checkpoint, wherever it was copied and by a link too, is told with what its manifest says."""
    shutil.copytree(folder_of(root), tmp_path / "copy")
    (tmp_path / "link").symlink_to("copy")
    for path in (folder_of(root), tmp_path / "copy", tmp_path / "link"):
        code, report = look(path)
        facts = [report[name] for name in ("step", "tokens", "reason", "generation", "schema", "state")]
        assert (code, facts) == (0, [3, 3000, "preempt", 3, 2, "verified"])
    assert report["files"][0] == {
        "path": "model",
        "bytes": 7000,
        "hash": f"blake3:{blake3(FILES['model']).hexdigest()}",
        "state": "verified",
    }
    out = inspect(folder_of(root))[1]
    assert f"model           6.8 KiB  blake3:{blake3(FILES['model']).hexdigest()[:12]}  verified\n" in out


def test_a_changed_manifest_is_not_believed(root, look):
    """A manifest that COMMIT does not vouch for, or of another step, tells nothing and is named as the defect."""
    path = folder_of(root) / "MANIFEST.json"
    path.write_bytes(path.read_bytes().replace(b"3000", b"4000"))
    shutil.rmtree(folder_of(root, 2))
    shutil.copytree(folder_of(root, 1), folder_of(root, 2))
    code, report = look(root)
    assert (code, states(report)) == (4, {1: "verified", 2: "wrong-name", 3: "bad-commit"})
    assert [entry["tokens"] for entry in report["checkpoints"]] == [1000, None, None]
    code, report = look(folder_of(root))
    assert (code, report["state"], report["files"]) == (4, "bad-commit", [])
    path.unlink()
    assert look(folder_of(root))[1]["state"] == "incomplete"


def test_another_version_is_what_a_resume_stops_at(root, look):
    """A checkpoint of another schema is told as such, and that a resume would end in an error there."""
    commit(folder_of(root), schema=99)
    code, report = look(root)
    assert (code, states(report)[3], report["resume"]["takes"]) == (4, "other-schema", None)
    assert report["resume"]["text"] == "a resume would end with an error at checkpoint-3"


def test_quarantine_is_told(root, inspect, look):
    """What lies in quarantine is listed with the reason in its name, and can be looked into by itself."""
    (folder_of(root) / "model").write_bytes(b"")
    DiskStateStore(root, Retention(5)).load()
    (root / "quarantine/notes\x1b[2J").mkdir()
    code, report = look(root)
    assert (code, report["resume"]["takes"]) == (0, "checkpoint-2")
    assert report["quarantine"] == [
        {"name": "checkpoint-3.wrong-size", "reason": "wrong-size"},
        {"name": "notes\x1b[2J", "reason": None},
    ]
    out = inspect(root)[1]
    assert "in quarantine: checkpoint-3.wrong-size (wrong-size)\n" in out
    assert all(line.isprintable() for line in out.splitlines())
    code, report = look(root / "quarantine/checkpoint-3.wrong-size")
    assert (code, flaws(report)) == (4, {("wrong-size", "model")})


def test_without_checkpoints_one_sentence_is_told(tmp_path, inspect, root):
    """A folder without checkpoints, a file and a name that is not there end with code 4 and one line."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file\x1b[31m").write_text("")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/checkpoints").symlink_to(root / "checkpoints")
    for name in ("empty", "nowhere", "file\x1b[31m", "loop", "linked"):
        code, out, err = inspect(tmp_path / name)
        assert (code, out, err.count("\n")) == (4, "", 1)
        assert err.startswith("error: ")
        assert err.strip().isprintable()
    with pytest.raises(SystemExit) as refused:
        inspect()
    assert refused.value.code == 2


def test_nothing_is_changed(root, inspect, tmp_path):
    """Names, times and bytes stay, of a damaged checkpoint, what a save left and a lock too."""
    (folder_of(root) / "model").write_bytes(b"")
    (root / ".tmp/dead").mkdir()
    (root / "LOCK").touch()
    before = everything_under(tmp_path)
    for path in (root, folder_of(root), folder_of(root, 1), root / "nowhere"):
        for option in ("--json", "--quick"):
            inspect(path, option)
    assert everything_under(tmp_path) == before


def test_a_hostile_manifest_opens_nothing_outside(root, look, monkeypatch):
    """A path out of the folder, and a link in it, are defects; only files of the checkpoint itself are opened."""
    outside = {"path": "../checkpoint-1/model", "size": 7000, "hash": f"blake3:{blake3(FILES['model']).hexdigest()}"}
    commit(folder_of(root), files=[outside])
    (folder_of(root, 2) / "model").unlink()
    (folder_of(root, 2) / "model").symlink_to(folder_of(root, 1) / "model")
    opened = []
    open_file = FileOperations.open_file
    monkeypatch.setattr(FileOperations, "open_file", lambda self, path: opened.append(path) or open_file(self, path))
    for step, flaw in ((3, "bad-manifest"), (2, "irregular-file")):
        assert look(folder_of(root, step))[1]["state"] == flaw
        assert {path.name for path in opened} == {"MANIFEST.json", "COMMIT"}
        assert {path.parent for path in opened} == {folder_of(root, step)}
        opened.clear()


def test_control_characters_stay_away_from_the_terminal(root, inspect):
    """Names and reasons with escape sequences are shown escaped, as text and as JSON."""
    store = DiskStateStore(root, Retention(5))
    store.save(snapshot_of(4, {"red\x1b[31m\x7f\u202e\x9b": b"", "line\nbreak": b"x"}, reason="\x1b]0;title\x07"))
    (folder_of(root, 4) / "red\x1b[31m\x7f\u202e\x9b").write_bytes(b"more")
    for arguments in ((root,), (folder_of(root, 4),), (root, "--json"), (folder_of(root, 4), "--json")):
        code, out, _ = inspect(*arguments)
        assert code == 4
        assert all(line.isprintable() for line in out.splitlines())


def test_what_retention_deletes_meanwhile_is_left_out(root, monkeypatch):
    """A checkpoint that goes while its files are hashed is no defect: the report is of those that stayed."""
    open_file = FileOperations.open_file

    def opening(self, path):
        if path == folder_of(root, 1) / "model":
            shutil.move(folder_of(root, 1), root / ".trash/checkpoint-1.x")
        return open_file(self, path)

    monkeypatch.setattr(FileOperations, "open_file", opening)
    counted = []
    report = CheckpointInspector(hashing=True, count=counted.append).store(root)
    assert [found.name for found in report.checkpoints] == ["checkpoint-2", "checkpoint-3"]
    assert not any(found.problems for found in report.checkpoints)
    assert sum(counted) == 2 * 7001


def test_newer_checkpoints_take_the_place_of_all_that_were_listed(root, monkeypatch):
    """A run that saves faster than files are hashed has checkpoints all the same: the newer ones are told."""
    store, open_file = DiskStateStore(root, Retention(1)), FileOperations.open_file

    def opening(self, path):
        if path == folder_of(root) / "model":
            monkeypatch.undo()
            store.save(snapshot_of(4, FILES))
        return open_file(self, path)

    monkeypatch.setattr(FileOperations, "open_file", opening)
    report = CheckpointInspector(hashing=True, count=lambda _: None).store(root)
    assert [(found.name, list(found.problems)) for found in report.checkpoints] == [("checkpoint-4", [])]
