"""The loss of preferences and the figures of pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.preference_loss import PreferenceRule, mean_rewards, pair_figures


def test_the_loss_is_that_of_the_paper():
    """Equal margins cost log 2; a margin of m costs -log sigmoid(beta m), and smoothing mixes in the other label."""
    rule, smoothed = PreferenceRule(0.5), PreferenceRule(0.5, 0.25)
    assert rule.losses(np.zeros(1)) == pytest.approx(math.log(2))
    for margin in (-3.0, 0.2, 4.0):
        right, wrong = (-math.log(1 / (1 + math.exp(sign * 0.5 * margin))) for sign in (-1, 1))
        assert rule.losses(np.array([margin])) == pytest.approx(right)
        assert smoothed.losses(np.array([margin])) == pytest.approx(0.75 * right + 0.25 * wrong)


def test_large_margins_give_finite_losses():
    """The loss grows like the margin where the model is sure of the wrong reply, and is 0 for the right one."""
    assert PreferenceRule(1.0).losses(np.array([-1e4, 1e4])).tolist() == [1e4, 0.0]


def test_rewards_are_what_the_model_adds_to_the_reference():
    """The means of rewards, margin and order are those of the pairs."""
    reference = np.array([-3.0, -4.0, -5.0, -1.0])
    model = reference + np.array([2.0, -1.0, 0.0, 0.5])
    loss, *rewards = pair_figures(PreferenceRule(0.1), model, reference)
    assert loss == pytest.approx(PreferenceRule(0.1).losses(np.array([3.0, -0.5])))
    found = mean_rewards(np.sum(rewards, axis=1), 2)
    assert found == pytest.approx(
        {"reward_margin": 0.125, "reward_accuracy": 0.5, "reward_chosen": 0.1, "reward_rejected": -0.025}
    )


def test_ties_count_as_half():
    """Pairs whose margins are equal up to the rounding of fp32 are neither right nor wrong."""
    reference = np.array([-300.0, -400.0, -50.0, -60.0, -5.0, -6.0])
    model = reference + np.array([1e-4, 0.0, 0.0, 2e-5, 0.0, 1e-2])
    *_, wins = pair_figures(PreferenceRule(0.1), model, reference)
    assert wins.tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize(("beta", "smoothing"), [(0, 0), (-1, 0), (0.1, 0.5), (0.1, -0.1), (math.nan, 0)])
def test_impossible_values_are_refused(beta, smoothing):
    """A beta of 0 would learn nothing, and a smoothing of a half or more would prefer the rejected replies."""
    with pytest.raises(ConfigurationError):
        PreferenceRule(beta, smoothing)
