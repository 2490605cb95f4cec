"""Files of a run folder that was made elsewhere: lines that never end, and JSON that is nested without end."""

from __future__ import annotations

import json
import os
import tracemalloc
from contextlib import contextmanager

import pytest

from holdfast.adapters.shared.files.json_lines import LONGEST_LINE, JsonLines
from holdfast.bootstrap.operations.explain import explain
from holdfast.bootstrap.operations.list_runs import list_runs
from holdfast.bootstrap.run_reading.growing_file import GrowingRecords
from holdfast.bootstrap.run_reading.run_view import RunView
from tests.support.run_folders import add_event, add_steps, make_run

ENDLESS = 10 * LONGEST_LINE
DEEP = {"that json refuses": 100_000, "that json reads": 500}


def lengthen(path, size=ENDLESS):
    """Add ``size`` bytes that end no line; they take no space on the disk."""
    path.touch()
    os.truncate(path, path.stat().st_size + size)


@contextmanager
def little_memory():
    """Fail if the block holds a large part of an endless line at once."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * LONGEST_LINE


@pytest.fixture
def runs(tmp_path):
    """Return the folder of two runs, ``sound`` and ``endless``."""
    for name in ("sound", "endless"):
        folder = make_run(tmp_path / name)
        add_event(folder, "RunStarted", step=0, tokens=0)
        add_steps(folder, range(1, 8))
    return tmp_path


@pytest.fixture
def folders(runs, tmp_path):
    """Return the folder of the runs after the files of ``endless`` got lines that never end."""
    for name in ("events.jsonl", "metrics.jsonl", "samples.jsonl", "goodput.jsonl", "restarts.jsonl"):
        lengthen(tmp_path / "endless" / name)
    return tmp_path


def test_a_view_of_endless_lines_takes_little_memory(folders):
    """The records before them are shown, and what comes after them too."""
    with little_memory():
        view = RunView(folders / "endless").read_all()
        assert view.summary()["step"] == 7
        for name in ("metrics.jsonl", "events.jsonl"):
            with (folders / "endless" / name).open("a") as file:
                file.write("\n")
        add_steps(folders / "endless", range(8, 10))
        add_event(folders / "endless", "RunFinished", step=9, tokens=0)
        summary = view.read_all().summary()
    assert (summary["step"], summary["state"]) == (9, "finished")


def test_commands_on_endless_lines_take_little_memory(folders):
    """``runs`` lists both runs, and ``explain`` tells the records before the lines that never end."""
    with little_memory():
        assert {run["name"] for run in json.loads(list_runs(folders, as_json=True, width=80))["runs"]} == {
            "endless",
            "sound",
        }
        assert "step 7" in explain(folders / "endless")


def test_a_line_that_becomes_too_long_while_it_is_read_is_passed_over(tmp_path):
    """A poll in the middle of such a line, and one at its end, return no record of it; a replaced file starts anew."""
    path = tmp_path / "events.jsonl"
    path.write_text('{"a": 1}\n')
    records = GrowingRecords(path)
    assert records.poll()
    lengthen(path, LONGEST_LINE)
    assert not records.poll()
    lengthen(path, 1000)
    assert not records.poll()
    with path.open("a") as file:
        file.write('{"a": 2}\n{"a": 3}\n')
    assert records.poll()
    assert records.records == [{"a": 1}, {"a": 3}]
    (tmp_path / "new").write_text('{"a": 4}\n')
    (tmp_path / "new").rename(path)
    assert records.poll()
    assert records.records == [{"a": 4}]


def test_a_run_removes_an_endless_line_before_it_writes(tmp_path):
    """A start goes on after the last complete record, without reading the rest into memory."""
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    lengthen(path)
    lines = JsonLines(path)
    with little_memory():
        lines.cut(lambda record: record["step"] < 2)
        lengthen(path)
        lines.append({"step": 2})
        lines.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("depth", DEEP.values(), ids=DEEP)
@pytest.mark.parametrize("name", ["run.json", "settings", "events.jsonl", "LOCK"])
def test_json_without_end_spoils_one_run_alone(runs, name, depth):
    """``runs`` lists the others, whichever file of one is nested how deeply, and a view of it shows the problem."""
    deep, folder = '{"a":' * depth + "1" + "}" * depth, runs / "endless"
    if name == "settings":
        record = json.loads((folder / "run.json").read_text())
        (folder / "run.json").write_text(json.dumps(record).replace('"settings": {', f'"settings": {{"deep": {deep}, '))
    else:
        (folder / name).write_text(f"{deep}\n")
    found = json.loads(list_runs(runs, as_json=True, width=80))
    assert "sound" in {run["name"] for run in found["runs"]}
    view = RunView(folder)
    view.refresh()
    assert view.summary()["name"] == "endless"
    assert isinstance(view.settings(), list)
    if name in ("run.json", "settings"):
        assert "is damaged" in found["others"]["endless"]
        assert "nested too deeply" in view.summary()["problem"]
