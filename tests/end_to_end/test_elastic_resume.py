"""A run goes on in another number of processes and comes to the same end (T14)."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.command_line import corpus, losses, run, tiny

STEPS = 30
ENGINES = {
    "ddp": ["optimizer.sharding=ddp"],
    "fsdp2": ["optimizer.sharding=fsdp2"],
    "zero2": ["optimizer.kind=deepspeed", "optimizer.stage=2"],
    "zero3": ["optimizer.kind=deepspeed", "optimizer.stage=3"],
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a corpus, and what one process made of it without a pause."""
    home = tmp_path_factory.mktemp("elastic")
    train(home, "undisturbed", "ddp", ranks=1, steps=STEPS)
    return home


def train(home, name, engine, *, ranks, steps):
    path = home / "corpus.jsonl"
    more = [f"run.name={name}", f"run.budget.steps={steps}", f"distributed.processes={ranks}", *ENGINES[engine]]
    same_rate = "optimizer.schedule.kind=constant"  # whatever the budget
    settings = tiny(path if path.exists() else corpus(home), *more, same_rate, "evaluation.every=0")
    outcome = run("train", *settings, cwd=home, timeout=400)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    return outcome.stderr


def manifest_of(home, name, step):
    return json.loads((home / "runs" / name / f"checkpoints/checkpoint-{step}/MANIFEST.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ENGINES)
def test_one_two_and_one_process_end_as_one_does(home, engine):
    """Ten steps each in 1, 2 and 1 processes: every loss and the final weights are those of 30 steps in one process."""
    said = [train(home, engine, engine, ranks=ranks, steps=steps) for ranks, steps in ((1, 10), (2, 20), (1, STEPS))]
    expected, found = losses(home / "runs/undisturbed"), losses(home / "runs" / engine)
    assert sorted(found) == sorted(expected) == list(range(1, STEPS + 1))
    assert [found[step] for step in found] == pytest.approx([expected[step] for step in found], rel=5e-6)
    weights = [
        load_file(home / "runs" / name / f"checkpoints/checkpoint-{STEPS}/model.safetensors")
        for name in ("undisturbed", engine)
    ]
    assert weights[0].keys() == weights[1].keys()
    for name, expected_tensor in weights[0].items():
        np.testing.assert_allclose(weights[1][name], expected_tensor, rtol=0, atol=2e-5, err_msg=name)
    last, undisturbed = manifest_of(home, engine, STEPS), manifest_of(home, "undisturbed", STEPS)
    for manifest in (last, undisturbed):
        del manifest["progress"]["health"]["losses"]  # compared above: they are equal within rounding
    assert last["progress"] == undisturbed["progress"], "each sample is consumed once, in the same order"
    assert (undisturbed["contract"], last["contract"]) == ("bitwise", "numerical")
    assert "ranks was 1 and is 2" in said[1]
