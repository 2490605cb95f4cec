"""A run whose terminal is closed saves and stops."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import termios

import pytest

from tests.support.command_line import corpus, environment, losses, run_here, tiny


def train_on_a_terminal_that_closes(cwd, *settings, before=lambda: None):
    """Train on a terminal of its own, close that after the third step; return the exit code."""
    ours, theirs = pty.openpty()

    def take_terminal():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        before()

    process = subprocess.Popen(
        [sys.executable, "-m", "application", *settings],
        cwd=cwd,
        env=environment() | {"TERM": "xterm"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,  # noqa: PLW1509  it only asks the kernel
    )
    os.close(theirs)
    try:
        metrics = cwd / "runs/default/metrics.jsonl"
        drawn = b""
        while not (metrics.exists() and any(json.loads(line)["step"] >= 3 for line in whole_lines(metrics))):
            assert process.poll() is None, drawn.decode(errors="replace")
            if select.select([ours], [], [], 0.1)[0]:
                drawn += os.read(ours, 65536)
        os.close(ours)
        return process.wait(60)
    finally:
        process.kill()
        process.wait()


def whole_lines(path):
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--supervise",)])
def test_a_closed_terminal_saves_and_stops(tmp_path, more):
    """A run in a terminal that is closed ends with 129 and a checkpoint of its last step, and continues from there."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=100000", "state_store.every=100000", "evaluation.every=0")
    assert train_on_a_terminal_that_closes(tmp_path, "train", *more, *settings) == 129
    told = run_here("explain", "runs/default", cwd=tmp_path)
    assert "why: received SIGHUP; the same command continues" in told.stdout
    last = max(losses(tmp_path / "runs/default"))
    assert (tmp_path / f"runs/default/checkpoints/checkpoint-{last}/COMMIT").exists()


@pytest.mark.slow
def test_under_nohup_a_closed_terminal_changes_nothing(tmp_path):
    """A run that ignores SIGHUP, as nohup has it, trains to its end without its terminal."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=60", "evaluation.every=0")
    ignoring = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    train_on_a_terminal_that_closes(tmp_path, "train", *settings, before=ignoring)
    assert max(losses(tmp_path / "runs/default")) == 60


@pytest.mark.slow
@pytest.mark.parametrize("streams", ["", "2>&1"])
def test_a_run_whose_output_nobody_reads_finishes(tmp_path, streams):
    """A run whose reader has gone, as that of ``| head -1`` does, trains to its end and exits with 0."""
    settings = " ".join(map(shlex.quote, tiny(corpus(tmp_path), "run.budget.steps=6")))
    command = f"({sys.executable} -m application train {settings} {streams}; echo $? > code) | true"
    process = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment(), capture_output=True, timeout=280, check=False
    )
    assert b"Traceback" not in process.stderr
    assert (tmp_path / "code").read_text() == "0\n"
    assert max(losses(tmp_path / "runs/default")) == 6
