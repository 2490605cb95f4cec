"""A supervisor over children that die as they are told."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

ROOT_DRIVER = """
import sys
from pathlib import Path
from holdfast.bootstrap.process.supervisor import HeartbeatMonitor
from holdfast.bootstrap.process.supervisor import Supervisor
from holdfast.domain.fault_tolerance.restart_policy import RestartPolicy
policy = RestartPolicy(max_restarts=9, crash_loop=3, first_seconds=0.0, longest_seconds=0.0)
show = lambda line: print(line, file=sys.stderr, flush=True)
child = [sys.executable, "-c", sys.argv[2]]
heartbeats = HeartbeatMonitor(Path(sys.argv[1]) / "heartbeats", 0.5)
sys.exit(Supervisor(child, Path(sys.argv[1]), policy, heartbeats, grace_seconds=float(sys.argv[3]), report=show).run())
"""
# a child that numbers its starts, and its checkpoints
CHILD = """
import json, os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path({folder!r})
starts = folder / "starts"
number = len(starts.read_text()) if starts.exists() else 0
starts.write_text("x" * (number + 1))
def save(step):
    (folder / f"checkpoints/checkpoint-{{step}}").mkdir(parents=True)
    (folder / f"checkpoints/checkpoint-{{step}}/COMMIT").touch()
"""


@pytest.fixture
def supervised(tmp_path):
    """Return what starts a supervisor over a child that does as it is told, in ``tmp_path``."""

    def start(body, grace_seconds=30.0):
        child = CHILD.format(folder=str(tmp_path)) + body
        return subprocess.Popen(
            [sys.executable, "-c", ROOT_DRIVER, str(tmp_path), child, str(grace_seconds)],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    return start


def restarts(folder):
    """Return the lines of ``restarts.jsonl``."""
    return [json.loads(line) for line in (folder / "restarts.jsonl").read_text().splitlines()]


def wait_for(path):
    """Return once there is a file at ``path``."""
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_crash_loop_stops(tmp_path, supervised):
    """A child that dies again and again without a new checkpoint is given up, with its code and one sentence."""
    process = supervised("sys.exit(1)")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert errors.splitlines()[-1].endswith(
        "it died 3 times in a row without a new checkpoint, so another start would fail: "
        "see the error above, then start the run by hand"
    )
    assert [record["start"] for record in restarts(tmp_path)] == [1, 2, 3]


def test_a_dead_run_is_started_until_it_ends(tmp_path, supervised):
    """Killed, crashed and asked for a new process with progress in each, the child is started till it finishes."""
    ends = "[lambda: os.kill(os.getpid(), 9), lambda: sys.exit(1), lambda: sys.exit(75), lambda: sys.exit(0)]"
    metrics = "(folder / 'metrics.jsonl').write_text('{\"step\": %d, \"loss\": 1.0}\\n{torn' % (number * 10 + 14))"
    process = supervised(f"save(number * 10 + 10); {metrics}; print('start', number, flush=True); {ends}[number]()")
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.split() == ["start", "0", "start", "1", "start", "2", "start", "3"]
    told = [(record["cause"], record["durable_step"], record["lost_steps"]) for record in restarts(tmp_path)]
    assert told == [
        ("was killed by SIGKILL", 10, 4),
        ("failed with code 1", 20, 4),
        ("needed a new process, or hung", 30, 4),
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_a_signal_is_passed_on_and_ends_it(tmp_path, supervised, number):
    """The child hears the signal once, its exit code is the supervisor's, and nothing is started again."""
    process = supervised(
        f"signal.signal({int(number)}, lambda *_: sys.exit({128 + number}))\n"
        "(folder / 'ready').touch()\nwhile True: time.sleep(0.01)"
    )
    wait_for(tmp_path / "ready")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert (tmp_path / "starts").read_text() == "x"
    assert not (tmp_path / "restarts.jsonl").exists()


def test_nothing_outlives_a_start(tmp_path, supervised):
    """A grandchild that was stopped and has left its session is gone before the next start."""
    process = supervised(
        "alive = lambda pid: os.path.exists(f'/proc/{pid}')\n"
        "if number: sys.exit(2 if alive(int((folder / 'orphan').read_text())) else 0)\n"
        "orphan = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], start_new_session=True)\n"
        "os.kill(orphan.pid, signal.SIGSTOP)\n"
        "(folder / 'orphan').write_text(str(orphan.pid))\n"
        "os.kill(os.getpid(), 9)"
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors


def test_patience_ends_with_the_grace_period(tmp_path, supervised, monkeypatch):
    """A child that ignores the signal is killed when the grace period and its margin are over."""
    process = supervised(
        "signal.signal(15, signal.SIG_IGN); (folder / 'ready').touch()\nwhile True: time.sleep(0.01)",
        grace_seconds=-4.9,
    )
    wait_for(tmp_path / "ready")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 137
    assert "has not ended" in errors


def test_a_run_that_stopped_beating_is_killed(tmp_path, supervised):
    """A child whose heartbeat stands still is killed and started again, and one that never beat is waited for."""
    process = supervised(
        "if number: time.sleep(1.5); sys.exit(0)\n"
        "(folder / 'heartbeats').mkdir()\n"
        "(folder / 'heartbeats/rank0.json').write_text(json.dumps(dict(pid=os.getpid())))\n"
        "os.kill(os.getpid(), signal.SIGSTOP)"
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "no process of the run sends a heartbeat" in errors
    assert [record["code"] for record in restarts(tmp_path)] == [75]


def test_the_supervisor_imports_nothing_heavy():
    """What waits beside a run for weeks holds neither torch nor any other large library."""
    heavy = ["torch", "transformers", "accelerate", "dependency_injector", "numpy"]
    program = (
        f"import sys, holdfast.bootstrap.process.supervisor; print([name for name in {heavy} if name in sys.modules])"
    )
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert outcome.stdout.strip() == "[]"
