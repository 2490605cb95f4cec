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
    told = environment() | {"SHORTAGES": POINTS}
    told["MET"] = str(home / engine)
    (home / engine).mkdir()
    shutil.rmtree(home / "cache/micro-batch", ignore_errors=True)  # what another engine's run has learned
    record = home / "runs" / engine / "micro-batch.json"
    command = [sys.executable, "-m", "tests.support.shortage_ranks", str(record), "train"]
    outcome = subprocess.run(
        [*command, *settings(home / "corpus.jsonl", engine, *ENGINES[engine])],
        cwd=home, env=told, text=True, capture_output=True, timeout=550, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    assert len(list((home / engine).glob("met-*"))) == 4
    assert outcome.stdout.count("starting all processes again") == 4
    assert json.loads(record.read_text())["shortages"] == {"16": 1, "8": 1, "4": 1, "2": 1}
    expected, found = losses(home / "runs/undisturbed"), losses(home / "runs" / engine)
    assert found.keys() == expected.keys()
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=1e-5), step
