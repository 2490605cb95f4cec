"""All that says the state of a run says the same."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast.adapters.ledger.memory import MemoryLedger
from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.application.handlers.record_events import RecordEvents
from holdfast.application.handlers.record_ledger import RecordLedger
from holdfast.application.inbox import Inbox
from holdfast.bootstrap import web
from holdfast.bootstrap.operations.explain import explain
from holdfast.bootstrap.operations.inspect_run import inspect
from holdfast.bootstrap.operations.list_runs import list_runs
from holdfast.bootstrap.operations.report_facts import report_facts
from holdfast.bootstrap.operations.report_sections import markdown_report
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_reading.growing_file import newest_records
from holdfast.bootstrap.run_reading.run_state import last_step
from holdfast.bootstrap.run_reading.run_view import RunView
from holdfast.bootstrap.stages.attach.watchdog import RunAlarm
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.commands import ReportStall
from holdfast.domain.events import (
    CheckpointSaved,
    CheckpointStarted,
    DataEnded,
    RunFailed,
    RunFinished,
    RunStalled,
    RunStarted,
    StopRequested,
)
from holdfast.domain.run_end import LifecycleState
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.testing.snapshots import snapshot_of
from tests.support.run_folders import add_steps, hold, make_run

BEGIN, AT = Progress(0, 0), Progress(step=7, tokens=700)
STARTED = RunStarted(BEGIN)
SIGTERM = StopRequested(AT, "SIGTERM", 15)
EARLY = StopRequested(AT, "no better", None, is_early=True)
END_OF_DATA = (DataEnded(AT), StopRequested(AT, "the data ended", None))
FAILED, FINISHED = RunFailed(AT, ValueError("x")), RunFinished(AT)
SAVED = (CheckpointStarted(AT, "stop"), CheckpointSaved(AT, "checkpoint-7", "stop", 1.0, 0.1))
SLOW, HUNG = RunStalled(AT, 60.0, "a slow disk"), ReportStall(120.0, "rank 0 has made no progress")
BUILDING = {"phase": "building the model"}


def words_of(folder):
    """Return the state of a run as each command, page and report says it."""
    (listed,) = json.loads(list_runs(folder, as_json=True, width=80))["runs"]
    with closing(RunView(folder).read_all()) as view:
        page = view.summary()["state"]
    return {
        "explain": explain(folder).split(" · ")[1],
        "runs": listed["state"],
        "page": page,
        "report": report_facts(folder)["state"],
    }


def said(folder):
    """Return the word that all say."""
    words = words_of(folder)
    assert len(set(words.values())) == 1, words
    return words["explain"]


def record(folder, events):
    """Write ``events`` as a run does, the watchdog's last word by the watchdog."""
    with closing(JsonLines(folder / "events.jsonl")) as file:
        write = RecordEvents(file.append)
        for event in events:
            if isinstance(event, ReportStall):
                RunAlarm(folder, 0, Inbox(), report=print, leave=lambda: None).give_up(event)
            else:
                write(event)


@pytest.mark.parametrize(
    ("events", "start", "state"),
    [
        ([STARTED, *SAVED, FINISHED], {}, "finished"),
        ([STARTED, *END_OF_DATA, *SAVED, FINISHED], {}, "finished"),
        ([STARTED, *END_OF_DATA, SIGTERM, *SAVED, FINISHED], {}, "finished"),
        ([STARTED, SIGTERM, *SAVED, FINISHED], {}, "stopped"),
        ([STARTED, EARLY, *SAVED, FINISHED], {}, "stopped early"),
        ([STARTED, EARLY, SIGTERM, *SAVED, FINISHED], {}, "stopped early"),
        ([STARTED, FAILED, *SAVED], {}, "failed"),
        ([STARTED], {}, "crashed"),
        ([STARTED, SIGTERM, *SAVED], {}, "crashed"),
        ([STARTED, SLOW], {}, "crashed"),
        ([STARTED, HUNG], {}, "hung"),
        ([STARTED, HUNG, STARTED, SIGTERM, FINISHED], {}, "stopped"),
        ([STARTED, SIGTERM, FINISHED, STARTED, FINISHED], {}, "finished"),
        ([STARTED, *END_OF_DATA, FINISHED, STARTED, SIGTERM, FINISHED], {}, "stopped"),
        ([STARTED, FINISHED, STARTED], {}, "crashed"),
        ([], {}, "crashed"),
        ([], BUILDING, "crashed"),
        ([], BUILDING | {"error": "DataError: no such file"}, "failed"),
        ([STARTED, FINISHED], BUILDING | {"time": "2999-01-01T00:00:00+00:00"}, "crashed"),
        ([STARTED, FINISHED], BUILDING | {"time": "2999-01-01T00:00:00+00:00", "error": "DataError: no"}, "failed"),
    ],
)
def test_all_say_the_same_of_a_run_that_no_process_holds(tmp_path, events, start, state):
    """The end of the last start decides, in the order in which the loop and the watchdog record it."""
    folder = make_run(tmp_path, start={"time": "2026-01-01T00:00:00+00:00", "phase": "training", **start})
    record(folder, events)
    assert said(folder) == state


EIGHT = {
    "running": ([STARTED], "training"),
    "finished": ([STARTED, FINISHED], "finished"),
    "data ended": ([STARTED, *END_OF_DATA, FINISHED], "finished"),
    "stopped": ([STARTED, SIGTERM, FINISHED], "stopped"),
    "stopped early": ([STARTED, EARLY, FINISHED], "stopped early"),
    "failed": ([STARTED, FAILED], "failed"),
    "hung": ([STARTED, HUNG], "hung"),
    "killed": ([STARTED], "crashed"),
}


@pytest.fixture(scope="module")
def eight(tmp_path_factory):
    """Return the folder of eight runs at step 7, the newest checkpoint of each of step 5."""
    runs = tmp_path_factory.mktemp("runs")
    for name, (events, _) in EIGHT.items():
        folder = make_run(runs / name, start={"time": "2026-01-01T00:00:00+00:00", "phase": "training"})
        add_steps(folder, range(1, 8))
        store = DiskStateStore(folder, Retention(9))
        for step in (2, 5):
            store.save(snapshot_of(step, {"weights": b"0"}))
        record(folder, events)
    hold(runs / "running")
    return runs


@pytest.mark.parametrize("name", EIGHT)
def test_all_say_the_same_state_step_and_checkpoint(eight, name):
    """`explain`, `runs`, `inspect`, the page and the report agree, in text as in JSON, of a run in each state."""
    folder, state = eight / name, EIGHT[name][1]
    told = explain(folder)
    assert told.startswith(f"{folder} · {state} · step 7 of 1000\n")
    assert "checkpoints: 2, the newest of step 5" in told
    (row,) = (line for line in list_runs(eight, as_json=False, width=200).splitlines() if line.startswith(f"{name}  "))
    assert re.split(r"  +", row)[:3] == [name, state, "7"]
    (listed,) = (run for run in json.loads(list_runs(eight, as_json=True, width=80))["runs"] if run["name"] == name)
    with closing(RunView(folder).read_all()) as view:
        page, on_page = view.summary(), view.checkpoints()
    facts = report_facts(folder)
    assert [listed["state"], page["state"], facts["state"]] == [state] * 3
    assert [listed["step"], page["step"], facts["figures"]["step"]] == [7] * 3
    assert f"{state} at step 7 of 1,000" in markdown_report([facts])
    text, _ = inspect(folder, hashing=False, as_json=True)
    inspected = [each["step"] for each in json.loads(text)["checkpoints"]]
    assert max(inspected) == on_page[0]["step"] == facts["checkpoints"][0]["step"] == 5


def test_a_late_evaluation_moves_no_step_back(tmp_path):
    """The suites of an earlier checkpoint come after the steps that were taken meanwhile."""
    folder = make_run(tmp_path)
    add_steps(folder, range(1, 8))
    layout = RunLayout(folder)
    with layout.metrics.open("a") as file:
        file.write('{"step": 4, "suite/own/acc": 0.5}\n')
    assert last_step(layout, newest_records(layout.metrics)) == 7


@contextmanager
def suspended():
    """Yield a process that is suspended."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("phase", "word"), [("training", "training"), ("building the model", "starting")])
def test_all_say_the_same_of_a_run_that_a_process_holds(tmp_path, phase, word):
    """It is starting or training, or suspended; a zombie is no process, and an end counts while the host lives on."""
    folder = make_run(tmp_path, start={"time": "2026-01-01T00:00:00+00:00", "phase": phase})
    record(folder, [STARTED] * (phase == "training"))
    hold(folder)
    assert said(folder) == word
    with suspended() as process:
        hold(folder, process.pid)
        assert said(folder) == "suspended"
        told = explain(folder)
        assert "no sign of life for" in told
        assert f"kill -CONT {process.pid}" in told
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not waited for
        assert said(folder) == "crashed"
    hold(folder)
    make_run(folder)
    record(folder, [STARTED, FINISHED])
    assert said(folder) == "finished"


def test_all_say_the_same_of_a_run_of_another_machine(tmp_path):
    """There its lock and its heartbeats tell: none for a long time is no sign of life, if it ever sent one."""
    folder = make_run(tmp_path)
    began = (datetime.now(UTC) - timedelta(hours=2)).isoformat()
    (folder / "events.jsonl").write_text(json.dumps({"time": began, "event": "RunStarted", "step": 0}) + "\n")
    beat = folder / "heartbeats/rank0.json"
    beat.parent.mkdir()
    beat.touch()
    (folder / "LOCK").write_text(json.dumps({"pid": 1, "host": "elsewhere", "since": time.time()}))
    with (folder / "LOCK").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert said(folder) == "training"
        for path in (beat, folder / "events.jsonl", folder / "run.json"):
            os.utime(path, (0, time.time() - 3600))
        assert said(folder) == "no sign of life"
        assert "no sign of life for 60 min: its lock is held, but it sends no heartbeats" in explain(folder)
        os.utime(beat, (0, time.time() - 3 * 3600))  # of an earlier start, whose watchdog was on
        assert said(folder) == "training"
    assert said(folder) == "crashed"


def test_all_say_the_same_of_a_folder_without_a_record(tmp_path):
    """A start that is under way has its lock there, and one that ended has left it."""
    folder = tmp_path / "run"
    folder.mkdir()
    for pid, state in ((None, "starting"), (2**22 + 1, "not begun")):
        hold(folder, pid)
        assert explain(folder).split(" · ")[1] == state
        with closing(RunView(folder).read_all()) as view:
            assert view.summary()["state"] == state
        assert json.loads(list_runs(tmp_path, as_json=True, width=80))["others"]["run"].startswith(f"{state}: ")


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([FINISHED], "finished"),
        ([*END_OF_DATA, FINISHED], "finished"),
        ([EARLY, FINISHED], "stopped early"),
        ([SIGTERM, FINISHED], "stopped"),
        ([FAILED], "failed"),
    ],
)
def test_the_ledger_says_the_same(events, state, monkeypatch):
    """The end in the ledger has the word that the commands have."""
    ledger, ends = MemoryLedger(), []
    monkeypatch.setattr(ledger, "end_run", lambda _run, state, _time: ends.append(state))
    with closing(RecordLedger(ledger, "run", lambda *_: {}, {})) as handler:
        handler.on_start(STARTED)
        for event in events:
            (handler.on_end if isinstance(event, RunFinished | RunFailed) else handler.on_stop)(event)
    assert ends == [state]


def test_the_pages_know_each_state():
    """Each state has its colour on the page and in the report, and the page asks those that a process works on."""
    files = Path(web.__file__).parent / "static"
    page, report, panels = ((files / name).read_text() for name in ("page.css", "report.css", "page_panels.js"))
    for state in set(LifecycleState) - {LifecycleState.NOT_BEGUN}:
        assert f'[data-state="{state}"]' in page
        assert f".state-{state.replace(' ', '-')}" in report
    asked = re.search(r"const isActive = (\[.*\])\.includes\(state\);", panels)[1]
    assert set(json.loads(asked)) == {state for state in LifecycleState if state.is_active}
