"""A run goes on however the next start divides its model."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.end_to_end.test_elastic_resume import manifest_of
from tests.support.command_line import corpus, losses, run, tiny

KINDS = {
    "one process": ["distributed.processes=1"],
    "ddp": ["distributed.processes=2", "optimizer.sharding=ddp"],
    "fsdp2": ["distributed.processes=2", "optimizer.sharding=fsdp2"],
    "tensor": ["distributed.processes=2", "distributed.mesh.tensor=2"],
    "context": ["distributed.processes=2", "distributed.mesh.context=2"],
}
DECODER = ["model.kind=decoder", "model.num_hidden_layers=4", "model.tie_word_embeddings=false"]
STAGES = {
    "one process": [*DECODER, "distributed.processes=1"],
    "1f1b": [*DECODER, "distributed.processes=2", "distributed.mesh.pipeline=2"],
    "interleaved": [
        *DECODER,
        "distributed.processes=2",
        "distributed.mesh.pipeline=2",
        "distributed.mesh.schedule=interleaved",
    ],
}


def every_change(kinds):
    """Return a path that goes from each kind to each other one exactly once, and ends where it began."""
    pairs = [(kind, other) for place, kind in enumerate(kinds) for other in kinds[place + 1 :]]
    return [kind for pair in pairs for kind in pair] + [kinds[0]]


def train(home, name, kind, steps, kinds=KINDS):
    path = home / "corpus.jsonl"
    more = [f"run.name={name}", f"run.budget.steps={steps}", *kinds[kind], "evaluation.every=0"]
    settings = tiny(path if path.exists() else corpus(home), *more, "optimizer.schedule.kind=constant")
    if "model.kind=decoder" in kinds[kind]:
        settings = [setting.replace("model.config.", "model.") for setting in settings]
    outcome = run("train", *settings, cwd=home, timeout=400)
    assert outcome.returncode == 0, (kind, steps, outcome.stderr[-3000:])


def test_the_path_has_every_change_once():
    """Each ordered pair of kinds follows each other once."""
    path = every_change(list(KINDS))
    changes = list(pairwise(path))
    assert len(set(changes)) == len(changes) == len(KINDS) * (len(KINDS) - 1)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_each_division_goes_on_from_the_checkpoint_of_each_other(tmp_path):
    """One step a start, from each kind to each other: all losses and samples are those of one process."""
    check_every_change(KINDS, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_pipeline_goes_on_from_one_process_and_back(tmp_path):
    """One step a start, with either schedule and without a pipeline: losses and samples are those of one process."""
    check_every_change(STAGES, tmp_path)


def check_every_change(kinds, tmp_path):
    path = every_change(list(kinds))
    train(tmp_path, "undisturbed", "one process", len(path), kinds)
    for steps, kind in enumerate(path, start=1):
        train(tmp_path, "changing", kind, steps, kinds)
    expected, found = losses(tmp_path / "runs/undisturbed"), losses(tmp_path / "runs/changing")
    assert sorted(found) == sorted(expected) == list(range(1, len(path) + 1))
    assert [found[step] for step in found] == pytest.approx([expected[step] for step in found], rel=5e-6)
    last, undisturbed = (manifest_of(tmp_path, name, len(path)) for name in ("changing", "undisturbed"))
    for manifest in (last, undisturbed):
        del manifest["progress"]["health"]["losses"]  # compared above: they are equal within rounding
    assert last["progress"] == undisturbed["progress"], "each sample is consumed once, in the same order"
