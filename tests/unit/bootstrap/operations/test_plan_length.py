"""The steps of a planned run."""

from __future__ import annotations

import pytest

from holdfast.bootstrap.operations.plan_run import limits_without_trial, planned_steps
from holdfast.configs.settings import TrainSettings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.run_forecast import TrialTimes

TIMES = TrialTimes(start=10.0, first_evaluation=0.0, step=0.5, evaluation=5.0, save=1.0, end=5.0)
TOKENS = 1000.0  # of a step


def settings_of(*, epochs=None, **budget):
    return TrainSettings(
        data={"kind": "python_library", "epochs": epochs},
        optimizer={"batch_size": 8},
        run={"budget": {"steps": None, **budget}},
        evaluation={"every": 50},
        state_store={"kind": "disk", "every": 100},
    )


@pytest.mark.parametrize(
    ("budget", "samples", "steps"),
    [
        ({"steps": 30}, None, 30),
        ({"tokens": 5500}, None, 6),
        ({"steps": 5, "tokens": 5500}, None, 5),
        ({"minutes": 2}, None, 163),  # (120 - 20 s) / (0.5 + 5 / 50 + 1 / 100) s
        ({"steps": 30, "minutes": 2}, None, 30),
        ({"steps": 300, "minutes": 2}, None, 163),
        ({"steps": 10**9}, 80, 10),
        ({"steps": 10**9}, 81, 11),
        ({"steps": 10**9, "minutes": 2}, 81, 11),
        ({"steps": 9}, 80, 9),
    ],
)
def test_the_first_limit_ends_the_planned_run(budget, samples, steps):
    """Steps, tokens, minutes and the last row of finite data each end the run, and the first of them counts."""
    assert planned_steps(settings_of(**budget), TOKENS, TIMES, samples) == steps


def test_minutes_need_a_trial():
    """Without a trial minutes alone are refused, and with another limit they are named as one that may come first."""
    with pytest.raises(ConfigurationError, match=r"minutes alone becomes a number of steps only in a trial"):
        planned_steps(settings_of(minutes=2), TOKENS, None)
    both = settings_of(minutes=2, steps=30)
    assert planned_steps(both, TOKENS, None) == 30
    assert [*limits_without_trial(both)] == [
        "run.budget.minutes=2 may end the run earlier: its steps are not known without a trial"
    ]


def test_finite_data_of_unknown_size_are_named():
    """Without a trial the plan says that the data may end before the budget, if they are finite."""
    assert [*limits_without_trial(settings_of(steps=30))] == []
    assert [*limits_without_trial(settings_of(steps=30, epochs=2))] == [
        "data.epochs=2 may end the run earlier: the size of the data is not known without a trial"
    ]
