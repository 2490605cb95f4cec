"""Memory that runs out on one of two ranks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tests.support.command_line import corpus, environment, losses, run, tiny

POINTS = "1:3:forward 0:8:backward 1:13:optimizer 0:18:forward"
ENGINES = {
    "ddp": [],
    "fsdp2": ["optimizer.sharding=fsdp2"],
    "zero2": ["optimizer.kind=deepspeed", "optimizer.stage=2"],
    "zero3": ["optimizer.kind=deepspeed", "optimizer.stage=3"],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a corpus, and what one process made of it."""
    home = tmp_path_factory.mktemp("shortages")
    outcome = run("train", *settings(corpus(home), "undisturbed"), cwd=home)
    assert outcome.returncode == 0, outcome.stderr
    return home


def settings(path, name, *more):
    return tiny(
        path, f"run.name={name}", "run.budget.steps=20", "optimizer.batch_size=32", "evaluation.every=0",
        "evaluation.at_start=false", *more,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ENGINES)
def test_all_ranks_start_again_in_smaller_micro_batches(home, engine):
    """Whatever rank runs short, wherever in a step, nothing hangs and the losses are those of the undisturbed run."""
    shutil.rmtree(home / "cache/micro-batch", ignore_errors=True)  # what another engine's run has learned
    record = train_short_of_memory(home, engine, settings(home / "corpus.jsonl", engine, *ENGINES[engine]))
    assert json.loads(record.read_text())["shortages"] == {"16": 1, "8": 1, "4": 1, "2": 1}
    check_same_losses(home, engine)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_all_stages_start_again_in_smaller_micro_batches(tmp_path, schedule):
    """Whatever stage runs short, the other does not hang, and the losses are those of one process."""
    own = stages(corpus(tmp_path), "undisturbed", "distributed.processes=1")
    outcome = run("train", *own, cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    mesh = ["distributed.mesh.pipeline=2", f"distributed.mesh.schedule={schedule}"]
    record = train_short_of_memory(tmp_path, schedule, stages(tmp_path / "corpus.jsonl", schedule, *mesh))
    assert json.loads(record.read_text())["shortages"] == {"32": 1, "16": 1, "8": 1, "4": 1}, "ranks have all rows"
    check_same_losses(tmp_path, schedule)


def stages(path, name, *more):
    """Return the settings of a decoder that two stages a rank can divide."""
    shape = ["model.kind=decoder", "model.num_hidden_layers=4", "model.tie_word_embeddings=false"]
    return [setting.replace("model.config.", "model.") for setting in settings(path, name, *shape, *more)]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_minutes_are_measured_again_in_smaller_micro_batches(tmp_path):
    """If a rank runs short while the time of a step is measured, all start again, and the run is decided and made."""
    own = settings(corpus(tmp_path), "timed", "run.budget.steps=2", "run.budget.minutes=3", *ENGINES["ddp"])
    record = train_short_of_memory(tmp_path, "timed", own, points="1:1:backward")
    assert json.loads(record.read_text())["shortages"] == {"16": 1}
    assert losses(tmp_path / "runs/timed").keys() == {1, 2}


def train_short_of_memory(home, name, own, points=POINTS):
    """Train with settings ``own`` on two ranks that run short at ``points``; return the record of micro-batches."""
    (home / name).mkdir()
    record = home / "runs" / name / "micro-batch.json"
    outcome = subprocess.run(
        [sys.executable, "-m", "tests.support.shortage_ranks", str(record), "train", *own],
        cwd=home, env=environment() | {"SHORTAGES": points, "MET": str(home / name)}, text=True, capture_output=True,
        timeout=550, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert len(list((home / name).glob("met-*"))) == len(points.split())
    assert outcome.stdout.count("starting all processes again") == len(points.split())
    return record


def check_same_losses(home, name):
    expected, found = losses(home / "runs/undisturbed"), losses(home / "runs" / name)
    assert found.keys() == expected.keys()
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=1e-5), step
