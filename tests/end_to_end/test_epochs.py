"""A run whose length is given in epochs."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.support.command_line import corpus, losses, run_here, start, tiny, wait_for_checkpoint

FOLDER = Path("runs/default")


def decided(home, epochs=1):
    record = json.loads((home / FOLDER / "run.json").read_text())
    return int(record["auto"][f"data.epochs={epochs}"]["value"])


def weights(home, step):
    return (home / FOLDER / f"checkpoints/checkpoint-{step}/model.safetensors").read_bytes()


@pytest.mark.timeout(180)
def test_a_killed_run_of_an_epoch_ends_as_one_of_its_steps(tmp_path):
    """Epochs become steps once, so a killed run has the bytes, and the learning rates, of a run of these steps."""
    killed, undisturbed = tmp_path / "killed", tmp_path / "undisturbed"
    killed.mkdir()
    undisturbed.mkdir()
    settings = tiny(corpus(tmp_path), "run.budget.steps=null", "optimizer.batch_size=16")
    process = start("train", *settings, "data.epochs=1", cwd=killed)
    wait_for_checkpoint(killed / FOLDER, 5, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    steps = decided(killed)
    finished = run_here("train", *settings, "data.epochs=1", cwd=killed)
    assert f"finished {steps:,} step" in finished.stdout
    assert decided(killed) == steps > 5
    settings += ["data.epochs=1", f"run.budget.steps={steps}"]
    assert run_here("train", *settings, cwd=undisturbed).returncode == 0
    assert weights(killed, steps) == weights(undisturbed, steps)
    assert losses(killed / FOLDER) == losses(undisturbed / FOLDER)


def test_more_epochs_go_on(tmp_path):
    """A finished run says what makes it longer, and more epochs than before are read whole, also in other steps."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=null", "optimizer.batch_size=16", "evaluation.every=0")
    assert run_here("train", *settings, "data.epochs=1", cwd=tmp_path).returncode == 0
    again = run_here("train", *settings, "data.epochs=1", cwd=tmp_path)
    assert "more of it: a larger data.epochs\n" in again.stdout
    more = run_here("train", *settings, "data.epochs=2", "optimizer.batch_size=8", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert f"finished {decided(tmp_path, 2):,} steps" in more.stdout
    assert re.search(rf"budget  {decided(tmp_path, 2):,} steps = [\d,]+ tokens = 2\.0 epochs", more.stderr)
    assert 3 * decided(tmp_path) - 1 <= decided(tmp_path, 2) <= 3 * decided(tmp_path)
