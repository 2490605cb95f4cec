"""Runs compare the loss that they use with the plain one, once a machine, and refuse one that differs."""

from __future__ import annotations

import importlib
import json
import os

from tests.support.command_line import corpus, run_here, tiny

AGREES = "the chunked loss agrees with the plain one on the first batch"


def steps_in(run):
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [record["step"] for record in map(json.loads, lines) if "loss" in record]


def test_a_machine_compares_the_loss_once(tmp_path):
    """The first run prints the differences and their limits, and a later run of the same shape compares nothing."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=1", "evaluation.every=0")
    first = run_here("train", *settings, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert f"{AGREES}, its value by " in first.stderr
    assert "(at most 1e-04)" in first.stderr
    assert "(at most 1e-03)" in first.stderr
    [stamp] = (tmp_path / "cache/loss-probe").iterdir()
    assert json.loads(stamp.read_text())["torch"]
    again = run_here("train", *settings, "run.name=again", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert AGREES not in again.stderr
    stamp.unlink()
    os.mkfifo(stamp)  # which nobody writes to
    behind = run_here("train", *settings, "run.name=behind", cwd=tmp_path)
    assert AGREES in behind.stderr
    assert stamp.is_file()
    other = run_here("train", *settings, "run.name=other", "model.config.hidden_size=48", cwd=tmp_path)
    assert AGREES in other.stderr
    assert len(list((tmp_path / "cache/loss-probe").iterdir())) == 2


def test_a_loss_that_differs_ends_the_run_before_its_first_step(tmp_path, monkeypatch):
    """A chunked loss with another gradient ends the run with 2 and no step, and leaves no stamp."""
    module = importlib.import_module("holdfast.adapters.shared.modeling.causal_language_model")
    chunked = module.chunked_cross_entropy
    monkeypatch.setattr(module, "chunked_cross_entropy", lambda *given, **options: 1.01 * chunked(*given, **options))
    process = run_here("train", *tiny(corpus(tmp_path)), cwd=tmp_path)
    assert process.returncode == 2
    assert "the chunked loss differs from the plain one on this machine" in process.stderr
    assert "set model.loss=plain" in process.stderr
    assert steps_in(tmp_path / "runs/default") == []
    assert not (tmp_path / "cache/loss-probe").exists()
    settings = tiny(corpus(tmp_path), "run.name=other", "model.loss=plain", "run.budget.steps=1")
    plain = run_here("train", *settings, cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
