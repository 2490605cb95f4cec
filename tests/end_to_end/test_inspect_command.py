"""Looking into a trained run with `inspect`, as a user does."""

from __future__ import annotations

import json

from tests.support.command_line import corpus, losses, run_here, tiny


def test_a_trained_run_is_looked_into(tmp_path):
    """The checkpoints of a run that was trained are told with the run's own figures; a resume would take the newest."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=6", "state_store.every=3", "evaluation.every=3")
    trained = run_here("train", *settings, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    told = run_here("inspect", "runs/default", "--json", cwd=tmp_path)
    assert (told.returncode, told.stderr) == (0, "")
    report = json.loads(told.stdout)
    assert report["resume"]["takes"] == "checkpoint-6"
    own = losses(tmp_path / "runs/default")
    found = [(entry["step"], entry["reason"], entry["loss"], entry["state"]) for entry in report["checkpoints"]]
    assert found == [(3, "periodic", own[3], "verified"), (6, "final", own[6], "verified")]
    assert [entry["evaluation"]["step"] for entry in report["checkpoints"]] == [3, 6]
    table = run_here("inspect", "runs/default", cwd=tmp_path)
    assert table.stdout.endswith("a resume would take checkpoint-6\n")
    one = run_here("inspect", "runs/default/checkpoints/checkpoint-6", cwd=tmp_path)
    assert one.returncode == 0
    assert "optimizer.safetensors" in one.stdout
