"""`runs`: the history of training below a folder."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from holdfast.bootstrap.operations.list_runs import list_runs
from holdfast.domain.errors import StateError
from tests.support.command_line import corpus, run_here, tiny
from tests.support.opened_files import opened_files

STARTED = {"event": "RunStarted", "time": "2026-11-25T10:00:00+00:00"}
FINISHED = {"event": "RunFinished", "time": "2026-11-25T11:00:00+00:00"}


def made(folder, *events, start=None, origins=(), **settings):
    """Write a run folder with these ``events``."""
    folder.mkdir(parents=True)
    record = {
        "schema": 1,
        "created": "2026-11-25T10:00:00+00:00",
        "settings": {"run": {"name": folder.name}, "optimizer": {"learning_rate": 0.1, **settings}},
        "origins": dict.fromkeys(origins, "command line"),
        "auto": {},
        "facts": {},
        "history": [],
        "start": {"time": "2026-11-25T10:00:00+00:00", "phase": "training", **(start or {})},
    }
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (folder / "metrics.jsonl").write_text('{"step": 7, "tokens": 700, "loss": 2.5}\n')
    return folder


def states(folder):
    return {run["name"]: run["state"] for run in json.loads(list_runs(folder, as_json=True, width=80))["runs"]}


def test_a_refused_start_is_no_run(tmp_path):
    """A first start that was refused is named with the reason, and is not among the runs; a broken one is."""
    refused = {"phase": "looking at data", "is_first": True, "error": "DataError: there is no file a.jsonl"}
    made(tmp_path / "typo", start=refused)
    made(tmp_path / "bug", start=refused | {"error": "KeyError: 'a'"})
    made(tmp_path / "later", STARTED, start={name: refused[name] for name in ("phase", "error")})
    report = json.loads(list_runs(tmp_path, as_json=True, width=80))
    assert {run["name"]: run["state"] for run in report["runs"]} == {"bug": "failed", "later": "failed"}
    assert report["others"] == {"typo": "holds no run, as its first start was refused: there is no file a.jsonl"}


@pytest.mark.parametrize(("phase", "state"), [("training", "training"), ("building the model", "starting")])
def test_a_run_that_is_locked_is_alive(tmp_path, phase, state):
    """A process that holds the lock trains the run, or starts it."""
    folder = made(tmp_path / "a", STARTED, start={"phase": phase})
    with (folder / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert states(tmp_path) == {"a": state}


def test_foreign_and_damaged_folders_are_named(tmp_path):
    """What holds no run, or one that cannot be read, is named with the reason; the others are listed, however deep."""
    made(tmp_path / "sweep" / "a", STARTED, FINISHED)
    made(tmp_path / "damaged")
    (tmp_path / "damaged" / "run.json").write_text("{")
    (tmp_path / "notes").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "mlflow-artifacts" / "1").mkdir(parents=True)
    report = json.loads(list_runs(tmp_path, as_json=True, width=80))
    assert [run["name"] for run in report["runs"]] == ["sweep/a"]
    assert report["others"].keys() == {"damaged", "notes"}
    assert "is damaged" in report["others"]["damaged"]
    with pytest.raises(StateError, match="is no folder"):
        list_runs(tmp_path / "nowhere", as_json=False, width=80)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_fits_the_terminal(tmp_path, width):
    """No line is wider than the terminal; the settings in which runs differ are named, and no others."""
    made(tmp_path / "a", STARTED, FINISHED, weight_decay=0.5)
    made(tmp_path / f"b{'x' * 90}", STARTED, FINISHED, weight_decay=0.25)
    text = list_runs(tmp_path, as_json=False, width=width)
    assert max(map(len, text.splitlines()[1:])) <= width
    assert "optimizer.weight_decay=0.5" in text
    assert "learning_rate" not in text


def test_settings_of_one_kind_that_nobody_chose_are_not_named(tmp_path):
    """What only some runs have, as they read other data, is named if it was chosen or has several values."""
    made(tmp_path / "a", STARTED, FINISHED)
    made(tmp_path / "b", STARTED, FINISHED, origins=["optimizer.clip"], clip=2, epsilon=3, fused=True)
    made(tmp_path / "c", STARTED, FINISHED, clip=2, epsilon=3, fused=False)
    listed = json.loads(list_runs(tmp_path, as_json=True, width=80))["runs"]
    assert [run["settings"] for run in listed] == [
        {},
        {"optimizer.clip": 2, "optimizer.fused": True},
        {"optimizer.clip": 2, "optimizer.fused": False},
    ]


def test_a_trained_run_is_listed_with_its_figures(tmp_path):
    """The figures are those of the run's own files, and the version is that of its data."""
    settings = tiny(corpus(tmp_path), "data.mode=cache", "run.budget.steps=4", "evaluation.every=2")
    trained = run_here("train", *settings, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    listed = run_here("runs", "--json", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    [run] = json.loads(listed.stdout)["runs"]
    records = [json.loads(line) for line in (tmp_path / "runs/default/metrics.jsonl").read_text().splitlines()]
    evaluations = [record["eval_loss"] for record in records if "eval_loss" in record]
    assert (run["name"], run["state"], run["step"], run["settings"]) == ("default", "finished", 4, {})
    assert run["loss"] == next(record["loss"] for record in records if record.get("step") == 4 and "loss" in record)
    assert (run["eval_loss"], run["best_eval_loss"]) == (evaluations[-1], min(evaluations))
    record = json.loads((tmp_path / "runs/default/run.json").read_text())
    assert run["data_versions"] == [record["data_versions"][0]["id"]]
    assert "default  finished" in run_here("runs", "runs", cwd=tmp_path).stdout


def test_the_listing_of_many_runs_reads_little_of_each(tmp_path):
    """Listing opens three files a run and reads the ends of those that grow, so that a thousand take seconds."""
    line = '{"step": 7, "tokens": 700, "loss": 2.5}\n'
    for number in range(50):
        folder = made(tmp_path / f"run-{number}", STARTED, FINISHED, weight_decay=number)
        (folder / "metrics.jsonl").write_text(line * 20_000)
    before = bytes_read()
    with opened_files() as opened:
        assert len(states(tmp_path)) == 50
    assert bytes_read() - before < 50 * 200_000
    found = [Path(path).name for path in opened if path.startswith(str(tmp_path))]
    assert set(found) == {"run.json", "events.jsonl", "metrics.jsonl"}
    assert len(found) <= 50 * 10  # some twice, and each by Python and by the system


def bytes_read():
    """Return the bytes that this process has read of files and everything else."""
    return int(Path("/proc/self/io").read_text().partition("rchar: ")[2].split()[0])
