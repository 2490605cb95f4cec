"""A run that is killed, stopped, damaged or short of memory comes to the same end."""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.command_line import (
    Hold,
    corpus,
    losses,
    run,
    run_here,
    start,
    tiny,
    wait_for_checkpoint,
    wait_for_step,
)

FOLDER = Path("runs/default")


def final_weights(home: Path) -> bytes:
    return (home / FOLDER / "checkpoints/checkpoint-30/model.safetensors").read_bytes()


def resumed_steps(home: Path) -> list[int]:
    lines = (home / FOLDER / "events.jsonl").read_text().splitlines()
    return [record["step"] for record in map(json.loads, lines) if record["event"] == "RunStarted"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("precision", "kills"),
    [
        ("bf16", (15,)),
        pytest.param("fp32", (5, 15, 25), marks=pytest.mark.slow),
        pytest.param("bf16", (5, 15, 25), marks=pytest.mark.slow),
    ],
)
def test_kill_nine_changes_nothing(tmp_path, precision, kills):
    """Killed at random moments behind these checkpoints, a run ends with the bytes and losses of an undisturbed one."""
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    for home in (undisturbed, killed):
        home.mkdir()
    settings = tiny(corpus(tmp_path), f"optimizer.precision={precision}")
    assert run_here("train", *settings, cwd=undisturbed).returncode == 0
    moment, hold = random.Random(sum(kills)), Hold(tmp_path)
    for durable in kills:
        hold.behind(min(durable + 9, 29))  # so that there is a run to kill, however late
        process = start("train", *settings, hold.settings, cwd=killed)
        wait_for_checkpoint(killed / FOLDER, durable, process)
        time.sleep(moment.uniform(0, 0.03))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert run_here("train", *settings, cwd=killed).returncode == 0
    steps = resumed_steps(killed)
    assert steps[0] == 0
    assert all(0 < earlier < later for earlier, later in itertools.pairwise(steps[1:])), steps
    assert final_weights(killed) == final_weights(undisturbed)
    assert losses(killed / FOLDER) == losses(undisturbed / FOLDER)


@pytest.mark.timeout(300)
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_stops(tmp_path, number, code):
    """SIGTERM and SIGINT stop the run within the step, with a checkpoint of it, and the exit code says so."""
    settings = tiny(corpus(tmp_path), "state_store.every=0", "run.budget.steps=100000", "evaluation.every=0")
    process = start("train", *settings, cwd=tmp_path)
    wait_for_step(tmp_path / FOLDER, 3, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == code, errors
    last = max(losses(tmp_path / FOLDER))
    assert (tmp_path / FOLDER / f"checkpoints/checkpoint-{last}/COMMIT").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_flipped_byte_is_set_aside(tmp_path):
    """A damaged newest checkpoint is set aside with one line, the one before is used, and the result is the same."""
    settings = tiny(corpus(tmp_path))
    assert run("train", *settings, cwd=tmp_path).returncode == 0
    weights = tmp_path / FOLDER / "checkpoints/checkpoint-30/model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:])
    process = run("train", *settings, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    lines = [line for line in (process.stdout + process.stderr).splitlines() if "checkpoint-30 is damaged" in line]
    assert len(lines) == 1
    assert resumed_steps(tmp_path)[-1] == 25
    assert list((tmp_path / FOLDER / "quarantine").iterdir())
    assert weights.read_bytes() == whole
    assert sorted(losses(tmp_path / FOLDER)) == list(range(1, 31))
