"""A supervised run comes to its end whatever befalls its processes."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import psutil
import pytest

from tests.support.command_line import Hold, corpus, losses, run, start, tiny, wait_for_checkpoint

FOLDER = Path("runs/default")


def trainer(process):
    """Return the number of the process that trains below the supervisor ``process``."""
    (child,) = psutil.Process(process.pid).children()
    return child.pid


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_three_times_it_ends_with_the_same_bytes(tmp_path):
    """Killed by SIGKILL three times, a supervised run ends with the bytes and the losses of an undisturbed one."""
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for home in (undisturbed, killed):
        home.mkdir()
    settings = tiny(corpus(tmp_path), "recovery.supervisor.first_pause_seconds=0")
    assert run("train", *settings, cwd=undisturbed).returncode == 0
    hold = Hold(tmp_path)
    hold.behind(9)
    process = start("train", "--supervise", *settings, hold.settings, cwd=killed)
    for durable, next_held in ((5, 19), (15, 29), (25, 39)):
        wait_for_checkpoint(killed / FOLDER, durable, process)
        os.kill(trainer(process), signal.SIGKILL)
        hold.behind(next_held)
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert "finished 30 steps" in output
    assert re.search(r"goodput: +\d+\.\d% of [\d.,]+ s in 4 starts \(.*restarts .*%", output), output
    weights = FOLDER / "checkpoints/checkpoint-30/model.safetensors"
    assert (killed / weights).read_bytes() == (undisturbed / weights).read_bytes()
    assert losses(killed / FOLDER) == losses(undisturbed / FOLDER)
    told = [json.loads(line) for line in (killed / FOLDER / "restarts.jsonl").read_text().splitlines()]
    assert [record["cause"] for record in told] == ["was killed by SIGKILL"] * 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_mistake_and_a_signal_end_it(tmp_path):
    """A wrong setting ends with 2 at once, and SIGTERM with a checkpoint and 143, without a restart."""
    assert run("train", "--supervise", "data.kind=fils", cwd=tmp_path).returncode == 2
    settings = tiny(corpus(tmp_path), "run.budget.steps=100000")
    process = start("train", "--supervise", *settings, cwd=tmp_path)
    wait_for_checkpoint(tmp_path / FOLDER, 5, process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 143, errors
    last = max(losses(tmp_path / FOLDER))
    assert (tmp_path / FOLDER / f"checkpoints/checkpoint-{last}/COMMIT").exists()
    assert not (tmp_path / FOLDER / "restarts.jsonl").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_damaged_tokens_are_made_again(tmp_path):
    """A supervised run that finds a damaged shard of tokens is started again, makes it again and finishes."""
    settings = tiny(corpus(tmp_path), "recovery.supervisor.first_pause_seconds=0", "run.budget.steps=5")
    assert run("prepare", *settings, cwd=tmp_path).returncode == 0
    (tokens,) = (tmp_path / "cache").rglob("tokens.bin")
    data = bytearray(tokens.read_bytes())
    data[len(data) // 2] ^= 1
    tokens.write_bytes(data)
    process = run("train", "--supervise", *settings, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "is damaged" in process.stderr
    (told,) = [json.loads(line) for line in (tmp_path / FOLDER / "restarts.jsonl").read_text().splitlines()]
    assert told["code"] == 75


def ranks(process):
    """Return the numbers of the two processes that train below the supervisor ``process``, by rank."""
    (launcher,) = psutil.Process(process.pid).children()
    found = {child.environ().get("RANK"): child.pid for child in launcher.children() if "RANK" in child.environ()}
    return found["0"], found["1"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_stopped_rank_is_named_and_the_run_ends(tmp_path):
    """A rank that SIGSTOP holds is named by the watchdog of the other, and the supervised run comes to its end."""
    low = ["recovery.watchdog.min_seconds=15", "recovery.supervisor.first_pause_seconds=0"]
    hold = Hold(tmp_path)
    hold.behind(9)
    more = ["distributed.processes=2", "run.budget.steps=60", hold.settings, *low]
    process = start("train", "--supervise", *tiny(corpus(tmp_path), *more), cwd=tmp_path)
    wait_for_checkpoint(tmp_path / FOLDER, 5, process)
    _, second = ranks(process)
    os.kill(second, signal.SIGSTOP)
    hold.release()
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert "finished 60 steps" in output
    stacks = (tmp_path / FOLDER / "stacks").glob("rank0-*.txt")
    assert any("application/training/loop.py" in path.read_text() for path in stacks)
    told = [json.loads(line) for line in (tmp_path / FOLDER / "restarts.jsonl").read_text().splitlines()]
    assert [record["code"] for record in told] == [75]
    assert "RunStalled" in (tmp_path / FOLDER / "events.jsonl").read_text()
    assert not psutil.pid_exists(second)
    silent = rf"rank 1 \(process {second} on [^)]+\) sends no heartbeats any more \(stopped or dead\)"
    assert re.search(silent, errors), errors
