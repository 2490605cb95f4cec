from __future__ import annotations

import math
from random import Random

import pytest

from holdfast.domain.tuning.lr_range_test import evaluate_range_test

RATES = [1e-6 * 1e6 ** (step / 99) for step in range(100)]


def losses_of(best, *, noise=0.0):
    """Return the losses of a test in which the loss falls around the rate ``best`` and explodes at thirty times it."""
    chance = Random(0)
    return [
        10.0 - 5.0 / (1 + (best / rate) ** 2) + (rate / (30 * best)) ** 3 + noise * chance.gauss(0, 1) for rate in RATES
    ]


@pytest.mark.parametrize("best", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_suggestion_is_near_the_fall(best, noise):
    """The suggested rate is near that at which the loss falls, whatever that is, also with noise."""
    result = evaluate_range_test(RATES, losses_of(best, noise=noise), 100)
    assert best / 2 < result.suggestion < best * 2
    assert result.suggestion < result.lowest
    assert result.diverged is None or result.lowest < result.diverged


def test_a_loss_that_is_no_number_ends_the_test():
    """Steps after the first loss that is not finite are ignored, and the rate there counts as diverged."""
    losses = losses_of(1e-3)
    losses[70:] = [math.nan] * 30
    result = evaluate_range_test(RATES, losses, 100)
    assert result.diverged == RATES[70]
    assert len(result.losses) == len(result.rates) == 70


@pytest.mark.parametrize("losses", [[1.0] * 100, [float(step) for step in range(100)], [math.nan] * 100, [3.0, 2.0]])
def test_without_a_fall_there_is_no_suggestion(losses):
    """A loss that never falls, or too few steps, give no result."""
    assert evaluate_range_test(RATES, losses, 100) is None


def test_what_follows_a_divergence_changes_nothing():
    """A test that is ended once its loss has diverged has the result of the whole test."""
    losses = losses_of(1e-4, noise=0.05)
    whole = evaluate_range_test(RATES, losses, 100)
    first = next(n for n in range(100) if (found := evaluate_range_test(RATES, losses[:n], 100)) and found.diverged)
    assert first < 90
    assert all(evaluate_range_test(RATES, losses[:count], 100) == whole for count in range(first, 101))
