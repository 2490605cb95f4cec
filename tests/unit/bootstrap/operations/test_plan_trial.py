"""The settings of the trial of a plan."""

from __future__ import annotations

import pytest

from holdfast.bootstrap.operations.plan_trial import PlanTrial, trial_settings
from holdfast.configs.settings import TrainSettings


@pytest.mark.parametrize("budget", [{"minutes": 5}, {"minutes": 60}, {"steps": 10**6, "minutes": 5}, {"tokens": 10**9}])
def test_the_trial_has_the_budget_of_the_run(budget, tmp_path):
    """Compilation, an automatic batch and the schedule follow from the budget, so they are those of the run."""
    settings = TrainSettings(run={"budget": {"steps": None, **budget}}, evaluation={"every": 50})
    trial = trial_settings(settings, PlanTrial([], [], str(tmp_path / "trial"), steps=12))
    assert trial.run.budget == settings.run.budget
    assert trial.model == settings.model
    assert (trial.run.directory, trial.evaluation.every, trial.state_store.every) == (tmp_path / "trial", 0, 0)


def test_short_steps_are_not_measured_beside_saves(tmp_path):
    """A trial of many short steps evaluates and saves twice, so most of its steps run alone."""
    trial = PlanTrial([], [], str(tmp_path), steps=12)
    assert list(trial.measured_steps()) == [6, 12]
    assert list(PlanTrial([], [], str(tmp_path), steps=4).measured_steps()) == [2, 4]
