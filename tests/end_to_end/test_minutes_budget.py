"""A run whose length is given in minutes."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.command_line import corpus, losses, run, run_here, start, tiny, wait_for_checkpoint

FOLDER = Path("runs/default")
MINUTES = 1


def decided(home):
    record = json.loads((home / FOLDER / "run.json").read_text())
    return int(record["auto"][f"run.budget.minutes={MINUTES:g}"]["value"])


def settings_of(home, *more):
    return tiny(corpus(home), "run.budget.steps=null", "state_store.every=5", "evaluation.every=20", *more)


def weights(home, step):
    return (home / FOLDER / f"checkpoints/checkpoint-{step}/model.safetensors").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_runs_of_some_minutes_end_where_they_began_to(tmp_path):
    """Killed three times, a run of a minute has the bytes of an undisturbed run of the steps it decided on."""
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    killed.mkdir()
    undisturbed.mkdir()
    settings = settings_of(tmp_path)
    moment = random.Random(3)
    found = set()
    for durable in (5, 10, 15):
        process = start("train", *settings, f"run.budget.minutes={MINUTES}", cwd=killed)
        wait_for_checkpoint(killed / FOLDER, durable, process)
        time.sleep(moment.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        found.add(decided(killed))
    assert run("train", *settings, f"run.budget.minutes={MINUTES}", cwd=killed).returncode == 0
    steps = decided(killed)
    assert found == {steps}
    assert run("train", *settings, f"run.budget.steps={steps}", cwd=undisturbed).returncode == 0
    assert weights(killed, steps) == weights(undisturbed, steps)
    assert losses(killed / FOLDER) == losses(undisturbed / FOLDER)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_of_some_minutes_ends_after_them(tmp_path):
    """A run of a minute ends in about that time, starting and saving included."""
    began = time.monotonic()
    finished = run("train", *settings_of(tmp_path), f"run.budget.minutes={MINUTES}", cwd=tmp_path, timeout=200)
    seconds = time.monotonic() - began
    assert finished.returncode == 0, finished.stderr
    assert f"finished {decided(tmp_path):,} step" in finished.stdout
    assert 0.3 * 60 * MINUTES < seconds < 2 * 60 * MINUTES


@pytest.mark.timeout(300)
def test_a_run_without_time_takes_a_step(tmp_path):
    """If the time is over before the first step, the run takes one step and ends with a checkpoint."""
    finished = run_here("train", *settings_of(tmp_path), "run.budget.minutes=0.001", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "finished 1 step" in finished.stdout
