"""A run whose length is given in epochs."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import pytest

from tests.support.command_line import corpus, losses, run_here, start, tiny, wait_for_checkpoint

FOLDER = Path("runs/default")


def auto(home):
    return json.loads((home / FOLDER / "run.json").read_text())["auto"]


def decided(home, epochs=1):
    return int(auto(home)[f"data.epochs={epochs}"]["value"])


def weights(home, step):
    return (home / FOLDER / f"checkpoints/checkpoint-{step}/model.safetensors").read_bytes()


@pytest.mark.timeout(300)
@pytest.mark.slow
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
    """A finished run says what makes it longer, more epochs are read whole in any steps, and other data measure it."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=null", "optimizer.batch_size=16", "evaluation.every=0")
    assert run_here("train", *settings, "data.epochs=1", cwd=tmp_path).returncode == 0
    again = run_here("train", *settings, "data.epochs=1", cwd=tmp_path)
    assert "more of it: a larger data.epochs\n" in again.stdout
    of_one = decided(tmp_path)
    more = run_here("train", *settings, "data.epochs=2", "optimizer.batch_size=8", cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert f"finished {decided(tmp_path, 2):,} steps" in more.stdout
    assert re.search(rf"budget  {decided(tmp_path, 2):,} steps = [\d,]+ tokens = 2\.0 epochs", more.stderr)
    for command in (["evaluate", str(FOLDER)], ["export", str(FOLDER), "exported"]):
        measured = run_here(*command, "--data", "corpus.jsonl", cwd=tmp_path)
        assert (measured.returncode, measured.stderr.count("error")) == (0, 0), measured.stderr
    assert 3 * of_one - 1 <= decided(tmp_path, 2) <= 3 * of_one


def test_a_fall_back_to_before_a_smaller_batch_reads_all_rows(tmp_path):
    """A run whose newest checkpoint is damaged, so that it falls back behind a change of its batch, reads all rows."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=null", "evaluation.every=0", "state_store.every=4")
    settings += ["data.epochs=1", "state_store.keep=9"]
    assert run_here("train", *settings, "optimizer.batch_size=32", cwd=tmp_path).returncode == 0
    rows = int(re.match(r"[\d,]+", auto(tmp_path)["data.epochs=1"]["reason"])[0].replace(",", ""))
    changed = [*settings, "optimizer.batch_size=16"]
    assert run_here("train", *changed, "--from-step", "8", cwd=tmp_path).returncode == 0
    assert decided(tmp_path) == 8 + -(-(rows - 8 * 32) // 16)
    for damaged in (tmp_path / FOLDER / "checkpoints").glob("checkpoint-*/model.safetensors"):
        if damaged.parent.name != "checkpoint-4":
            damaged.write_bytes(b"damaged")
    again = run_here("train", *changed, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    steps = 4 + -(-(rows - 4 * 32) // 16)
    assert f"data.epochs=1 now ends the run at step {steps}" in again.stderr
    assert f"finished {steps} steps" in again.stdout
    assert losses(tmp_path / FOLDER).keys() == set(range(1, steps + 1))
