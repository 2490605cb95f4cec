"""The seconds between two checkpoints."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.training.cadence import SaveCost, mean_seconds, seconds_between_saves

SECONDS = st.floats(0, 1e6)


@pytest.mark.parametrize(
    ("age", "cost", "between_failures", "seconds"),
    [
        (0, SaveCost(), None, 10),
        (150, SaveCost(0.02, 0.1), None, 10),
        (3600, SaveCost(0.02, 0.1), None, 180),
        (1e6, SaveCost(0.02, 0.1), None, 600),
        (0, SaveCost(2.0, 5.0), None, 200),
        (0, SaveCost(0.02, 90.0), None, 450),
        (1e6, SaveCost(1.0, 5.0), 7200, 120),
        (1e6, SaveCost(0.0, 0.0), 7200, 1),
    ],
)
def test_the_interval_follows_age_cost_and_failures(age, cost, between_failures, seconds):
    """It is a twentieth of the time so far within limits, that of Young with failures, and longer for dear saves."""
    assert seconds_between_saves(age, cost, between_failures) == pytest.approx(seconds)


@given(SECONDS, SECONDS, SECONDS, st.none() | SECONDS)
def test_saves_never_take_more_than_their_share(age, stall, writing, between_failures):
    """Training waits for a hundredth of the time at most, and the disk writes for a fifth, whatever else is known."""
    seconds = seconds_between_saves(age, SaveCost(stall, writing), between_failures)
    assert seconds >= max(1.0, stall * 100 * (1 - 1e-9), writing * 5 * (1 - 1e-9))


def test_only_lengths_of_time_have_a_mean():
    """Values of a record that are no time leave the others their mean."""
    assert mean_seconds([30, "40", None, -5, True, float("nan"), float("inf"), 10**400, [], 10.0]) == 20
    assert mean_seconds(["soon", None]) is None
