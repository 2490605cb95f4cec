"""The W&B tracker keeps the port's promises with the real library, and its own; its server is a stand-in."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from holdfast.adapters.monitor import wandb as wandb_process
from holdfast.adapters.monitor.wandb import WandbEntry, wandb_tracker
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.monitor import EndState, NoteKind
from holdfast.ports.testing.monitor import described
from tests.support.slow_trackers import SlowTrackerContract, processes_of
from tests.support.tracker_readers import continued, sync, wandb_runs
from tests.support.wandb_server import WandbServer, wandb_server

pytest.importorskip("wandb")
KEY = "0123456789abcdef0123456789abcdef01234567"
ID = "5e1f0c3a9b7d4e2f8a6c1d0b3e5f7a92"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    with wandb_server() as served:
        yield served


@pytest.mark.slow
class TestWandbTracker(SlowTrackerContract):
    @pytest.fixture(autouse=True)
    def _servers(self, monkeypatch):
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        self.servers = {}
        yield
        for server in self.servers.values():
            server.close()

    def new_tracker(self, folder):
        return wandb_tracker(base_url=self.servers.setdefault(folder, WandbServer()).url)

    def recorded(self, monitor, folder):
        return [(step, {name: value}) for step, name, value in continued(wandb_runs(self.servers[folder]))]

    def noted(self, tracker, folder):
        (run,) = self.servers[folder].runs.values()
        notes = []
        for line in run.log:
            text = line.partition(" ")[2]  # a time comes first
            if match := re.fullmatch(r"\[step (\d+), \w+\] (.*)", text, re.DOTALL):
                notes.append((int(match[1]), match[2]))
            else:
                notes[-1] = (notes[-1][0], f"{notes[-1][1]}\n{text}")
        return notes

    def as_kept(self, value):
        return float(value) + 0.0  # the library has no negative zero


@pytest.mark.slow
def test_sync_uploads_each_step_once(tmp_path, server):
    """``wandb sync`` uploads a run that was killed and rolled back as runs of one group, each with a step once."""
    kill_after(tmp_path, "record(1); record(2); record(3); flush(); record(4); record(5)")
    tracker = begun(wandb_tracker(mode="offline"), tmp_path)
    assert tracker.rewind(3) == 3
    for step in (4, 5, 6):
        tracker.record(step, {"loss": 10.0 * step})
    tracker.rewind(4)
    tracker.record(5, {"loss": 500.0})
    tracker.record(5, {"eval_loss": float("nan")})
    tracker.note(5, NoteKind.EVENT, "rolled back to step 4")
    tracker.finish(EndState.FINISHED)
    tracker.close()
    sync(tmp_path / "wandb", server)
    assert shown(server) == {
        "": ({}, [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.0)]),
        "-2": ({"run": ID, "after_step": 3}, [(4, 40.0), (5, 50.0), (6, 60.0)]),
        "-3": ({"run": f"{ID}-2", "after_step": 4}, [(5, 500.0)]),
    }
    assert {run.group for run in server.runs.values()} == {ID}
    run = server.runs[f"{ID}-3"]
    assert repr(run.rows[-1]["eval_loss"]) == "nan"
    assert run.summary["loss"] == 500.0
    ends = {name.removeprefix(ID): run.summary["end_state"] for name, run in server.runs.items()}
    assert ends == {"": "continued", "-2": "continued", "-3": "finished"}
    assert any("rolled back to step 4" in line for line in run.log)
    assert run.exit_codes[-1] == 0
    assert run.config["run"]["value"] == {"name": "a run", "seed": 0}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["online", "offline"])
def test_starts_that_ended_continue_one_run(tmp_path, server, mode):
    """A run that was stopped at a checkpoint goes on in its run of W&B, online and in what ``wandb sync`` uploads."""
    options = {"base_url": server.url} if mode == "online" else {"mode": "offline"}
    for step in (1, 2, 3):
        tracker = begun(wandb_tracker(**options), tmp_path)
        assert tracker.rewind(step - 1) == step - 1
        tracker.record(step, {"loss": float(step)})
        tracker.flush()
        tracker.finish(EndState.STOPPED)
        tracker.close()
    if mode == "offline":
        sync(tmp_path / "wandb", server)
    assert shown(server) == {"": ({}, [(1, 1.0), (2, 2.0), (3, 3.0)])}


@pytest.mark.slow
def test_a_killed_and_rolled_back_run_on_a_server(tmp_path, server):
    """Online, each run of W&B that a run had has a step once; the names of the former and of the step are with it."""
    online = {"base_url": server.url, "group": "mine"}
    kill_after(tmp_path, "record(1); record(2); flush(); record(3); record(4)", online)
    wait_for(lambda: [run.exit_codes for run in server.runs.values()] == [[1]])
    tracker = begun(wandb_tracker(**online), tmp_path)
    tracker.rewind(2)
    for step in (3, 4, 5):
        tracker.record(step, {"loss": 10.0 * step})
    tracker.flush()
    tracker.rewind(4)
    tracker.record(5, {"loss": 500.0})
    tracker.finish(EndState.FINISHED)
    tracker.close()
    assert shown(server) == {
        "": ({}, [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]),
        "-2": ({"run": ID, "after_step": 2}, [(3, 30.0), (4, 40.0), (5, 50.0)]),
        "-3": ({"run": f"{ID}-2", "after_step": 4}, [(5, 500.0)]),
    }
    assert {run.group for run in server.runs.values()} == {"mine"}


@pytest.mark.slow
def test_what_a_server_never_got_is_asked_for_again(tmp_path, server):
    """A start finds that the server lacks rows of an earlier one, and asks for them, in a new run of W&B."""
    online = {"base_url": server.url}
    tracker = begun(wandb_tracker(**online), tmp_path)
    for step in (1, 2, 3):
        tracker.record(step, {"loss": float(step)})
    tracker.finish(EndState.STOPPED)
    tracker.close()
    (run,) = server.runs.values()
    del run.history[2:]
    run.summary |= {"step": 2, "_step": 2}
    tracker = begun(wandb_tracker(**online), tmp_path)
    assert tracker.rewind(3) == 2
    for step in (3, 4):
        tracker.record(step, {"loss": float(step)})
    tracker.close()
    assert shown(server) == {
        "": ({}, [(1, 1.0), (2, 2.0)]),
        "-2": ({"run": ID, "after_step": 2}, [(3, 3.0), (4, 4.0)]),
    }


@pytest.mark.slow
def test_what_the_library_may_not_have_stored_is_asked_for_again(tmp_path):
    """If all processes are killed, the next start asks for the rows that are not known to be in W&B's files."""
    process = child(tmp_path, "record(1); record(2); flush(); print('done', flush=True); input()")
    assert process.stdout.readline() == "done\n", process.stderr.read()
    for number in [*{int(name) for name in processes_of(tmp_path)} - {process.pid}, process.pid]:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
    process.communicate()
    tracker = begun(wandb_tracker(mode="offline"), tmp_path)
    assert tracker.rewind(2) == 0
    tracker.close()


def test_what_was_stored_long_ago_is_not_asked_for_again(monkeypatch):
    """What came before an earlier flush, long enough ago, is in W&B's files."""
    monkeypatch.setattr(wandb_process, "_SECONDS_UNTIL_STORED", 0.0)
    run = wandb_process.WandbRun()
    run._run = SimpleNamespace(step=4)
    run._record, run._entry = SimpleNamespace(write=lambda: None), WandbEntry("a", "here")
    for step in (1, 2, 3):
        run._entry.last_step = step
        run.flush()
    assert run._entry.stored_step == 2


@pytest.mark.slow
def test_a_folder_of_an_earlier_version_continues(tmp_path, server):
    """A run whose folder has W&B's files and no record goes on in a new run of W&B, linked to the old one."""
    tracker = begun(wandb_tracker(mode="offline"), tmp_path)
    for step in (1, 2):
        tracker.record(step, {"loss": float(step)})
    tracker.close()
    (tmp_path / "wandb/holdfast.json").unlink()
    tracker = begun(wandb_tracker(mode="offline"), tmp_path)
    assert tracker.rewind(2) == 2
    tracker.record(3, {"loss": 3.0})
    tracker.close()
    sync(tmp_path / "wandb", server)
    assert shown(server) == {
        "": ({}, [(1, 1.0), (2, 2.0)]),
        "-2": ({"run": ID, "after_step": 2}, [(3, 3.0)]),
    }


@pytest.mark.slow
def test_a_copied_run_stands_beside_the_original(tmp_path, server):
    """A copy of a run folder has a run of W&B of its own, in the group of the original and linked to its newest."""
    online = {"base_url": server.url}
    tracker = begun(wandb_tracker(**online), tmp_path / "first")
    tracker.record(1, {"loss": 1.0})
    tracker.close()
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    tracker = wandb_tracker(**online)
    tracker.begin(replace(described(tmp_path / "copy"), run_id="another", copied_from=[ID]))
    assert tracker.rewind(0) == 0
    tracker.record(1, {"loss": 1.0})
    tracker.close()
    copy = server.runs["another"]
    assert (copy.group, copy.config["continues"]["value"]) == (ID, {"run": ID, "after_step": 0})
    assert [row["step"] for row in server.runs[ID].rows] == [row["step"] for row in copy.rows] == [1]


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
def test_ends_with_the_training_process(tmp_path, server):
    """A process that is killed leaves no process behind, and its rows are uploaded."""
    kill_after(tmp_path, "record(1); record(2)")
    wait_for(lambda: not processes_of(tmp_path))
    sync(tmp_path / "wandb", server)
    assert shown(server) == {"": ({}, [(1, 1.0), (2, 2.0)])}


def test_a_missing_package_is_told_in_one_sentence(monkeypatch):
    """Without the extra the error names the command that installs it."""
    monkeypatch.setattr("holdfast.adapters.monitor.library_tracker.find_spec", lambda _: None)
    with pytest.raises(ConfigurationError, match=r"pip install \"holdfast-lm\[wandb\]\""):
        wandb_tracker()


def begun(tracker, folder):
    folder.mkdir(exist_ok=True)
    tracker.begin(described(folder))
    return tracker


def shown(server: WandbServer):
    """Return the link and the losses of each run, by the end of its id."""
    return {
        name.removeprefix(ID): (
            run.config.get("continues", {}).get("value", {}),
            [(row["step"], row["loss"]) for row in run.rows if "loss" in row],
        )
        for name, run in server.runs.items()
    }


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
