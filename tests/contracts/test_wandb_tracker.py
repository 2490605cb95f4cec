"""The W&B tracker keeps the port's promises with the real library, and its own; its server is a stand-in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from holdfast.adapters.monitor.library_process import unescaped
from holdfast.adapters.monitor.wandb import wandb_tracker
from holdfast.adapters.monitor.wandb_log import LogReader, rows_of
from holdfast.adapters.monitor.wandb_process import RESERVED
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.ports.monitor import EndState, NoteKind
from holdfast.ports.testing.monitor import described
from tests.support.slow_trackers import SlowTrackerContract, processes_of
from tests.support.wandb_server import WandbServer, wandb_server

pytest.importorskip("wandb")
KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.slow
class TestWandbTrackerOffline(SlowTrackerContract):
    def new_tracker(self, folder):
        return wandb_tracker(mode="offline")

    def recorded(self, monitor, folder):
        return recorded(folder)

    def noted(self, tracker, folder):
        return noted(folder)

    def as_kept(self, value):
        return float(value) + 0.0  # the library has no negative zero


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with wandb_server() as served:
        yield served


@pytest.mark.slow
def test_sync_uploads_each_step_once(tmp_path, server):
    """``wandb sync`` uploads the starts of a run that was killed and rolled back as one run, each step once."""
    kill_after(tmp_path, "record(1); record(2); record(3); flush(); record(4); record(5)")
    tracker = begun(wandb_tracker(mode="offline"), tmp_path)
    tracker.rewind(3)
    for step in (4, 5, 6):
        tracker.record(step, {"loss": 10.0 * step})
    tracker.rewind(4)
    tracker.record(5, {"loss": 500.0})
    tracker.record(5, {"eval_loss": float("nan")})
    tracker.note(5, NoteKind.EVENT, "rolled back to step 4")
    tracker.finish(EndState.FINISHED)
    tracker.close()
    sync(tmp_path, server)
    (run,) = server.runs.values()
    assert run.name == described(tmp_path).run_id
    points = [(row["step"], name, repr(row[name])) for row in run.rows for name in ("loss", "eval_loss") if name in row]
    assert points == [
        (1, "loss", "1"), (2, "loss", "2"), (3, "loss", "3"), (4, "loss", "40"), (5, "loss", "500"),
        (5, "eval_loss", "nan"),
    ]  # fmt: skip
    assert run.summary["loss"] == 500.0
    assert run.summary["end_state"] == "finished"
    assert any("rolled back to step 4" in line for line in run.log)
    assert run.exit_codes[-1] == 0
    assert run.config["run"]["value"] == {"name": "a run", "seed": 0}


@pytest.mark.slow
@pytest.mark.parametrize("rewinds", [True, False])
def test_a_server_has_each_step_once(tmp_path, server, rewinds):
    """Online, a killed and rolled-back run has each step once: the server is rewound, or the first values stay."""
    server.rewinds = rewinds
    online = {"base_url": server.url}
    kill_after(tmp_path, "record(1); record(2); flush(); record(3); record(4)", online)
    wait_for(lambda: len(rows(server)) == 4)
    tracker = begun(wandb_tracker(**online), tmp_path)
    if rewinds:
        tracker.rewind(2)
    else:
        with pytest.raises(StateError, match="rewind is not enabled"):
            tracker.rewind(2)
        tracker.rewind(2)
    for step in (3, 4, 5):
        tracker.record(step, {"loss": 10.0 * step})
    tracker.flush()
    tracker.rewind(4)
    tracker.record(5, {"loss": 500.0})
    tracker.record(6, {"loss": 6.0})
    tracker.finish(EndState.FINISHED)
    tracker.close()
    later = [(3, 30.0), (4, 40.0), (5, 500.0)] if rewinds else [(3, 3.0), (4, 4.0), (5, 50.0)]
    assert rows(server) == [(1, 1.0), (2, 2.0), *later, (6, 6.0)]
    assert server.runs[described(tmp_path).run_id].exit_codes[-1] == 0


@pytest.mark.slow
def test_what_a_server_never_got_is_sent_again(tmp_path, server):
    """Rows that are in the files of the run folder alone are sent at the next start, once."""
    tracker = begun(wandb_tracker(mode="offline"), tmp_path)
    for step in (1, 2, 3):
        tracker.record(step, {"loss": float(step)})
    tracker.close()
    for _ in range(2):
        tracker = begun(wandb_tracker(base_url=server.url), tmp_path)
        tracker.rewind(2)
        tracker.close()
        assert rows(server) == [(1, 1.0), (2, 2.0)]


@pytest.mark.slow
def test_nothing_of_the_machine_leaves_it(tmp_path, server):
    """Neither the key nor the environment is in the run folder, and the process prints nothing."""
    process = child(tmp_path, "record(1); tracker.close()", {"base_url": server.url}, SECRET_WORD="hush-hush")
    output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, "", "")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert KEY.encode() not in content, path
            assert b"hush-hush" not in content, path
    run = server.runs[described(tmp_path).run_id]
    assert not run.log
    assert {path.name for path in (tmp_path / "wandb").rglob("files/*")} <= {"config.yaml", "wandb-summary.json"}


@pytest.mark.slow
def test_ends_with_the_training_process(tmp_path):
    """A process that is killed leaves no process behind, and its rows are in the file."""
    kill_after(tmp_path, "record(1); record(2)")
    wait_for(lambda: recorded(tmp_path) == [(1, {"loss": 1.0}), (2, {"loss": 2.0})])
    wait_for(lambda: not processes_of(tmp_path))


def test_a_missing_package_is_told_in_one_sentence(monkeypatch):
    """Without the extra the error names the command that installs it."""
    monkeypatch.setattr("holdfast.adapters.monitor.library_tracker.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install \"holdfast-lm\[wandb\]\""):
        wandb_tracker()


def begun(tracker, folder):
    tracker.begin(described(folder))
    return tracker


def rows(server: WandbServer):
    return [(row["step"], row["loss"]) for run in server.runs.values() for row in run.rows]


def files(folder):
    return sorted(folder.glob("wandb/*run-*/run-*.wandb"), key=lambda path: path.stat().st_ctime)


def recorded(folder):
    return [
        (row.step, {unescaped(name, RESERVED): value for name, value in row.columns.items()})
        for path in files(folder)
        for row in rows_of(path)
    ]


def noted(folder):
    from wandb.proto.wandb_internal_pb2 import Record

    records = [Record.FromString(content) for path in files(folder) for content in LogReader(path).read()]
    lines = [record.output_logger.line for record in records if record.HasField("output_logger")]
    matches = [re.fullmatch(r"\[step (\d+), \w+\] (.*)\n", line, re.DOTALL) for line in lines]
    return [(int(match[1]), match[2]) for match in matches]


def sync(folder, server):
    environment = os.environ | {"WANDB_BASE_URL": server.url, "WANDB_ERROR_REPORTING": "false"}
    subprocess.run(
        [sys.executable, "-m", "wandb", "sync", str(folder / "wandb")],
        env=environment, cwd=folder, check=True, capture_output=True, timeout=100,
    )  # fmt: skip


def child(folder, calls, options=None, **environment):
    script = f"""
        from pathlib import Path
        from holdfast.adapters.monitor.wandb import wandb_tracker
        from holdfast.ports.testing.monitor import described
        tracker = wandb_tracker(**{options or {"mode": "offline"}!r})
        tracker.begin(described(Path({str(folder)!r})))
        record = lambda step: tracker.record(step, {{"loss": float(step)}})
        flush = tracker.flush
        {calls}
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)], env=os.environ | environment,
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def kill_after(folder, calls, options=None):
    process = child(folder, f"{calls}; print('done', flush=True); input()", options)
    assert process.stdout.readline() == "done\n", process.stderr.read()
    process.send_signal(signal.SIGKILL)
    process.communicate()


def wait_for(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
