"""The budget of a run as its record has it."""

from __future__ import annotations

import pytest

from holdfast.bootstrap.run_folder.record_file import budget_in, name_of_epochs, name_of_minutes


@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        ({"steps": None, "minutes": 2.0}, 40),
        ({"steps": 30, "minutes": 2.0}, 30),
        ({"steps": 50, "minutes": 2}, 40),
        ({"steps": 50, "minutes": 3.0}, 50),
        ({"steps": None, "minutes": 3.0}, None),
        ({"steps": 50}, 50),
    ],
)
def test_the_steps_of_the_minutes_count(budget, steps):
    """A record shows the steps that were decided for its own minutes, or fewer if the settings say so."""
    record = {"settings": {"run": {"budget": budget}}, "auto": {name_of_minutes(2.0): {"value": "40", "reason": ""}}}
    assert budget_in(record)["steps"] == steps


@pytest.mark.parametrize("settings", [{}, {"run": None}, {"run": {"budget": 3}}])
def test_a_record_without_a_budget_has_an_empty_one(settings):
    """Records of other programs or with damage have no budget, and no error."""
    assert budget_in({"settings": settings}) == {}


@pytest.mark.parametrize(
    ("budget", "epochs", "steps"),
    [
        ({"steps": None}, 3, 60),
        ({"steps": None}, 4, None),
        ({"steps": 50}, 3, 50),
        ({"steps": None, "tokens": 9}, 3, None),
        ({"steps": None}, None, None),
    ],
)
def test_the_steps_of_the_epochs_count_without_a_limit(budget, epochs, steps):
    """A record shows the steps that were decided for its own epochs, if nothing else limits the run."""
    settings = {"run": {"budget": budget}, "data": {"epochs": epochs}}
    assert budget_in({"settings": settings, "auto": {name_of_epochs(3): {"value": "60"}}})["steps"] == steps
