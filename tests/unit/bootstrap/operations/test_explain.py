import fcntl
import json
import os
import shlex
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from holdfast.bootstrap.cli.short_commands import explain as explain_command
from holdfast.bootstrap.operations.explain import explain
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings import TrainSettings
from holdfast.domain.errors import StateError

STARTED = {"event": "RunStarted", "step": 0}


def run_folder(folder, events, *, checkpoints=(), last_step=0):
    """Return a run folder in which this stands."""
    record = {"schema": 1, "settings": dump_settings(TrainSettings()), "auto": {}, "facts": {}, "history": []}
    (folder / "run.json").write_text(json.dumps(record))
    lines = [{"time": f"2026-11-22T10:00:{second:02d}+00:00", **event} for second, event in enumerate(events)]
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    steps = [{"step": step, "loss": 1.0} for step in range(1, last_step + 1)]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in steps))
    for step in checkpoints:
        place = folder / f"checkpoints/checkpoint-{step}"
        place.mkdir(parents=True)
        (place / "COMMIT").touch()
    return folder


def failed(folder, attempt, **changes):
    """Leave a post-mortem in the run folder ``folder``."""
    place = folder / "post-mortem" / attempt / "rank0"
    place.mkdir(parents=True)
    cause = {"error": "OutOfMemory", "message": "no room", "rank": 0, "ranks": 1, "step": 7, "what_to_try": ["less"]}
    (place / "cause.json").write_text(json.dumps(cause | changes))


@pytest.mark.parametrize(("events", "state"), [([], "not begun"), ([STARTED], "crashed")])
def test_the_first_line_is_state_and_step(tmp_path, events, state):
    """The first line tells the state and the last step; a run of an early version has no time of its start."""
    first, *_ = explain(run_folder(tmp_path, events, last_step=8)).splitlines()
    assert first == f"{tmp_path} · {state} · step 8 of 150"


def test_a_run_whose_data_have_ended_is_not_said_to_continue(tmp_path):
    """The stop that ends a run at the end of its data is no reason to start it again."""
    stop = {"event": "StopRequested", "reason": "the data ended"}
    told = explain(run_folder(tmp_path, [STARTED, {"event": "DataEnded"}, stop, {"event": "RunFinished"}]))
    assert "why: the data have ended" in told
    assert "continues" not in told


@pytest.mark.parametrize("run", [None, [], "text", {"budget": 5}, {"budget": {"steps": "many"}}])
def test_strange_settings_in_the_record_leave_the_rest_of_the_story(tmp_path, run):
    """A record whose budget cannot be read is told without it."""
    path = run_folder(tmp_path, [STARTED], last_step=8) / "run.json"
    record = json.loads(path.read_text())
    record["settings"]["run"] = run
    path.write_text(json.dumps(record))
    assert explain(tmp_path).splitlines()[0] == f"{tmp_path} · crashed · step 8"


def test_a_run_that_trains_is_told_as_such(tmp_path):
    """While a process holds the lock the run is in training, and nothing is said of an end."""
    run_folder(tmp_path, [STARTED], checkpoints=[4], last_step=6)
    with (tmp_path / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = explain(tmp_path)
    assert " · training · " in told
    assert "why" not in told
    assert "taken again" not in told


def test_what_is_lost_to_a_kill_is_told(tmp_path):
    """A killed run has a newest checkpoint, steps behind it that are taken again, and a way to go on."""
    told = explain(run_folder(tmp_path, [STARTED, STARTED | {"step": 4}], checkpoints=[4, 8], last_step=11))
    assert "the newest of step 8: 3 steps after it to be taken again" in told
    assert "started 2 times, at steps 0, 4" in told
    assert "kill -9" in told


def test_a_post_mortem_of_the_last_start_is_read(tmp_path):
    """Cause, place and advice of the newest post-mortem are told."""
    run_folder(tmp_path, [STARTED, {"event": "RunFailed", "error": "OutOfMemory: no room"}], checkpoints=[7])
    failed(tmp_path, "20261122-090000", message="long ago")
    failed(tmp_path, "20261122-095959")
    told = explain(tmp_path)
    assert "cause: OutOfMemory: no room" in told
    assert "post-mortem/20261122-095959/rank0" in told
    assert "- less" in told
    assert "continues from step 7" in told
    assert "long ago" not in told


def test_an_older_post_mortem_says_nothing_of_a_later_start(tmp_path):
    """A run that failed once and was killed later has crashed, and the old cause is not told."""
    run_folder(tmp_path, [STARTED, {"event": "RunFailed", "error": "x"}, STARTED])
    failed(tmp_path, "20261122-095959")
    assert "no room" not in explain(tmp_path)


def test_a_run_that_hung_is_told_with_its_stacks(tmp_path):
    """Who ended it, which rank is to blame and where its threads were is told in place of a kill without a word."""
    run_folder(tmp_path, [STARTED, {"event": "RunStalled", "seconds": 60.0, "reason": "rank 1 stands still"}])
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks/rank0-20261122-100000.txt").touch()
    told = explain(tmp_path)
    assert "why: rank 1 stands still" in told
    assert "stacks/rank0-20261122-100000.txt" in told
    assert "kill -9" not in told


def test_what_the_supervisor_saw_is_told(tmp_path):
    """Deaths under the supervisor are counted by cause, with the work that they cost and why it gave up."""
    run_folder(tmp_path, [STARTED])
    deaths = [{"cause": "was killed by SIGKILL", "lost_steps": 3}] * 2 + [
        {"cause": "failed with code 1", "lost_steps": 0, "gave_up": "it died three times at one place"}
    ]
    (tmp_path / "restarts.jsonl").write_text("".join(f"{json.dumps(death)}\n" for death in deaths))
    told = explain(tmp_path)
    assert "3 starts died, with 6 steps after a checkpoint: was killed by SIGKILL (2), failed with code 1 (1)" in told
    assert "gave up: it died three times at one place" in told


def test_what_is_no_run_folder_is_refused(tmp_path):
    """A folder without run.json gets one sentence."""
    with pytest.raises(StateError, match="not a run folder"):
        explain(tmp_path)


def test_a_strange_message_stays_on_its_line(tmp_path):
    """What an error says cannot move the cursor of a terminal or tell a secret."""
    run_folder(tmp_path, [STARTED, {"event": "RunFailed", "error": "\x1b[2Jx https://user:CANARY@host\nfake line"}])
    told = explain(tmp_path)
    assert "\x1b" not in told
    assert "CANARY" not in told
    assert "\nfake" not in told


def starting(folder, *events, checkpoints=(), **start):
    """Return a run folder whose last start has told so much of itself in run.json."""
    run_folder(folder, events, checkpoints=checkpoints)
    record = json.loads((folder / "run.json").read_text())
    record["start"] = {"time": "2026-11-22T12:00:00.5+00:00", "phase": "building the model", **start}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


@pytest.mark.parametrize(
    ("start", "state", "told"),
    [
        ({}, "crashed", "without a message while it was building the model"),
        ({"error": "DataError: no such file"}, "failed", "while it was building the model: DataError: no such file"),
    ],
)
@pytest.mark.parametrize("events", [(), (STARTED, {"event": "RunFinished", "step": 8})], ids=["first", "resumed"])
def test_a_start_that_did_not_come_to_training_is_told(tmp_path, events, start, state, told):
    """How far the last start came and what ended it is told, whatever an earlier start of the run came to."""
    text = explain(starting(tmp_path, *events, **start))
    assert f" · {state} · " in text.splitlines()[0]
    assert told in text
    assert "start the same command again" in text


def test_a_start_under_way_is_told_with_what_it_does(tmp_path):
    """While a process holds the lock and has not begun to train, what it does is told, and nothing of an end."""
    starting(tmp_path, phase="preparing the tokens")
    with (tmp_path / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = explain(tmp_path)
    assert " · starting · " in text
    assert "now preparing the tokens" in text
    assert "why" not in text


def test_a_start_that_came_to_training_is_told_by_its_events(tmp_path):
    """Once the last start has trained, its events tell how the run stands."""
    trained = {"event": "RunStarted", "step": 0, "time": "2026-11-22T12:00:01+00:00"}
    text = explain(starting(tmp_path, STARTED, trained, {"event": "RunFinished", "time": "2026-11-22T12:00:02+00:00"}))
    assert " · finished · " in text


def test_a_folder_that_is_only_locked_has_a_story(tmp_path):
    """Before run.json is there, a held lock tells of a start under way, and a free one of a start that ended."""
    with (tmp_path / "LOCK").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert " · starting · " in explain(tmp_path)
    text = explain(tmp_path)
    assert " · not begun · " in text
    assert "nothing was trained, and nothing is lost" in text


@pytest.mark.parametrize("time", [None, "yesterday", "2026-11-22T12:00:01", 7])
def test_an_event_without_a_time_is_passed_over(tmp_path, time):
    """Lines of events.jsonl, metrics.jsonl and folders that no run wrote so do not keep the rest from being told."""
    starting(tmp_path, STARTED, STARTED, checkpoints=[4, "other"], phase="building the model")
    lines = [{"event": "RunStarted", "step": 0} | ({} if time is None else {"time": time})] * 2
    (tmp_path / "events.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / "metrics.jsonl").write_text('{"loss": 1.0}\n{"loss": 1.0, "step": 4}\n')
    failed(tmp_path, "20261122-100000")
    assert "the newest of step 4" in explain(tmp_path)
    record = json.loads((tmp_path / "run.json").read_text())
    del record["start"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert "OutOfMemory: no room" in explain(tmp_path)


@pytest.mark.parametrize("content", ["text", {"time": "yesterday"}, {"time": "2026-11-22T12:00:00"}, {}])
def test_a_record_whose_start_is_damaged_is_refused(tmp_path, content):
    """A run.json whose start is not what a run writes there is one sentence."""
    run_folder(tmp_path, [])
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(record | {"start": content}))
    with pytest.raises(StateError, match="is damaged"):
        explain(tmp_path)


def test_the_command_wraps_its_lines_at_words_in_a_terminal(tmp_path, monkeypatch, capsys):
    """In a terminal no line is longer than its width, and no word is cut."""
    run_folder(tmp_path, [STARTED], checkpoints=[4], last_step=6)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    explain_command(Namespace(run=tmp_path))
    lines = [line for line in capsys.readouterr().out.splitlines() if str(tmp_path) not in line]
    assert max(map(len, lines)) <= 60
    assert " ".join(lines).endswith("start the same command again; it continues from the newest checkpoint")


HOLDS = "import sys, time; from pathlib import Path; from holdfast.bootstrap.run_folder.run_lock import take_lock; "
HOLDS += "take_lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"


def test_a_run_that_is_trained_is_told_with_its_whole_command(tmp_path):
    """The command of its process, to copy: no word is cut, and each is quoted for a shell."""
    run_folder(tmp_path, [STARTED])
    words = ["data.path=texts of mine/*.jsonl", f"run.name={'n' * 120}", f"model.path={'m' * 120}"]
    command = [sys.executable, "-c", HOLDS, str(tmp_path), *words]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[4])}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        text = explain(tmp_path)
        assert f" · training · step 0 of 150\ntrained by process {process.pid} on " in text
        assert text.splitlines()[1].endswith(shlex.join(words))
    finally:
        process.kill()
        process.communicate()
