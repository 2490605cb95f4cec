"""Runs that train a mixture of experts balance it, say so, and refuse a balancing loss that would not work."""

from __future__ import annotations

import json

import pytest
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter

from holdfast.adapters.shared.modeling.expert_balance import ExpertBalance
from tests.support.command_line import corpus, run_here, tiny
from tests.support.mixtures import lose_the_coefficient, report_detached, report_probabilities

MIXTRAL = ("model.config.model_type=mixtral", "model.config.num_local_experts=4", "model.config.num_experts_per_tok=2")
METRICS = {"balancing_loss", "expert_load_max", "expert_load_min"}


def records(home):
    path = home / "runs/default/metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [record for record in map(json.loads, lines) if "loss" in record]


def trained(home, *more):
    return run_here("train", *tiny(corpus(home), *MIXTRAL, "run.budget.steps=3", *more), cwd=home)


def test_a_run_balances_its_experts_and_reports_their_load(tmp_path):
    """The coefficient is that of the settings, the run says that it was probed, and each step has the load."""
    process = trained(tmp_path, "model.balancing_loss=0.02")
    assert process.returncode == 0, process.stderr
    assert "the balancing loss of 2 routers has the coefficient 0.02, and was probed" in process.stderr
    found = records(tmp_path)
    assert len(found) == 3
    for record in found:
        assert record.keys() >= METRICS
        assert record["balancing_loss"] >= 2 - 1e-3
        assert 0 <= record["expert_load_min"] <= 1 <= record["expert_load_max"] <= 2
    evaluated = run_here("evaluate", "runs/default", "--quiet", cwd=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr


def test_without_a_setting_the_coefficient_is_that_of_the_configuration(tmp_path):
    """``auto`` takes ``router_aux_loss_coef`` of the model's configuration, and 0 trains without the loss."""
    process = trained(tmp_path, "model.config.router_aux_loss_coef=0.005")
    assert "has the coefficient 0.005" in process.stderr
    process = trained(tmp_path, "run.name=without", "model.balancing_loss=0")
    assert process.returncode == 0, process.stderr
    assert "balancing loss" not in process.stderr


@pytest.mark.parametrize(
    ("plant", "target", "reason"),
    [
        (report_probabilities, MixtralTopKRouter, "the softmax would be taken twice"),
        (lose_the_coefficient, ExpertBalance, "acts with the coefficient 1 and not 0.02"),
        (report_detached, MixtralTopKRouter, "does not reach the routers' gradient"),
    ],
)
def test_a_planted_bug_ends_the_run_before_its_first_step(plant, target, reason, tmp_path, monkeypatch):
    """A softmax taken twice, a lost coefficient and a loss without gradient each end the run with 2 and no step."""
    plant(monkeypatch, target)
    process = trained(tmp_path, "model.balancing_loss=0.02")
    assert process.returncode == 2
    assert reason in process.stderr
    assert process.stderr.splitlines()[-1].startswith("error: the experts of MixtralForCausalLM")
    assert records(tmp_path) == []


def test_a_dense_model_has_nothing_to_balance(tmp_path):
    """A coefficient for a model without experts ends with 2 and one sentence."""
    process = run_here("train", *tiny(corpus(tmp_path), "model.balancing_loss=0.01"), cwd=tmp_path)
    assert process.returncode == 2
    assert "LlamaForCausalLM has no experts: set it to auto" in process.stderr
