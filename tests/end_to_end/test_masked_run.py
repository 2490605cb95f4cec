"""Whole runs that train on some of the tokens only."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from holdfast.bootstrap import build
from holdfast.bootstrap.adapter_choice.part_overrides import Around
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.events import EvaluationCompleted, StepCompleted
from tests.support.command_line import ROOT, SAME_RHYTHM, corpus, environment, losses, run_here, tiny
from tests.support.encoders import OddIdsEncoder
from tests.support.file_faults import files_under

STEPS = 20
KILLED = -9


def settings_of(home, name, mode):
    return tiny(
        home / "corpus.jsonl",
        SAME_RHYTHM,
        f"run.dir={home / name}",
        f"run.budget.steps={STEPS}",
        f"data.mode={mode}",
        "state_store.every=4",
        "monitors=[jsonl]",
    )


def train(home, name, mode, last=0):
    command = [sys.executable, "-m", "tests.support.masked_run", str(last), *settings_of(home, name, mode)]
    return subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)


def weights(home, name):
    """Return what the last checkpoint holds of model and optimizer."""
    files = files_under(home / name / f"checkpoints/checkpoint-{STEPS}")
    return {name: data for name, data in files.items() if name.endswith(".safetensors")}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_masked_run_that_is_killed_three_times_goes_on_bit_for_bit(tmp_path, mode):
    """Killed after any step, a run with a loss mask ends with the very weights and losses of one that was not."""
    corpus(tmp_path)
    whole = train(tmp_path, "whole", mode)
    assert whole.returncode == 0, whole.stderr
    for last in (5, 11, 18):
        assert train(tmp_path, "killed", mode, last).returncode == KILLED
    rest = train(tmp_path, "killed", mode)
    assert rest.returncode == 0, rest.stderr
    assert weights(tmp_path, "killed") == weights(tmp_path, "whole")
    assert losses(tmp_path / "killed") == losses(tmp_path / "whole")


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_mask_reaches_training_and_evaluation(tmp_path, mode):
    """With half of the tokens masked, half as many are targets, of steps and of evaluations, and the losses differ."""
    corpus(tmp_path)
    figures = {}
    for name, parts in (("all", {}), ("odd", {"document_encoder": Around(OddIdsEncoder)})):
        overrides = [*settings_of(tmp_path, name, mode), "run.budget.steps=2", "evaluation.every=2"]
        run, found = build(load_settings([], overrides, {}).settings, **parts), []
        run.subscribe(StepCompleted, lambda event, found=found: found.append(event.outcome))
        run.subscribe(EvaluationCompleted, lambda event, found=found: found.append(event.evaluation))
        run.run()
        figures[name] = found
    for every, odd in zip(figures["all"], figures["odd"], strict=True):
        assert 0.2 * every.num_targets < odd.num_targets < 0.8 * every.num_targets
        assert odd.loss != every.loss
    assert figures["odd"][-1].num_bytes < figures["all"][-1].num_bytes


def test_prepare_counts_the_tokens_that_are_trained_on(tmp_path, monkeypatch):
    """Output, JSON and the version of the data tell how many tokens are trained on, and nothing where all are."""
    corpus(tmp_path)
    plain = run_here("prepare", *tiny(tmp_path / "corpus.jsonl"), cwd=tmp_path)
    assert "trained on" not in plain.stdout
    made = "holdfast.bootstrap.stages.identify.document_encoder.TextDocumentEncoder"
    real = __import__("holdfast.adapters.document_encoder.text", fromlist=["_"]).TextDocumentEncoder
    monkeypatch.setattr(made, lambda tokenizer: OddIdsEncoder(real(tokenizer)))
    arguments = tiny(tmp_path / "corpus.jsonl", f"run.cache_dir={tmp_path / 'masked'}")
    shown = run_here("prepare", *arguments, cwd=tmp_path)
    told = json.loads(run_here("prepare", "--json", *arguments, cwd=tmp_path).stdout)
    assert shown.returncode == 0, shown.stderr
    assert 0.2 < told["supervised_tokens"] / told["tokens"] < 0.8
    assert f"{told['supervised_tokens']:,} of them, " in shown.stdout
    [version] = told["versions"].values()
    described = run_here("data", "show", version, "--cache", str(tmp_path / "masked/tokens"), cwd=tmp_path)
    assert f"trained on     {told['supervised_tokens']:,} tokens" in described.stdout, described.stderr
