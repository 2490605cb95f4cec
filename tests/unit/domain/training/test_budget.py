"""The budget of a run: its limits, and minutes that become steps."""

from __future__ import annotations

import pytest

from holdfast.domain.data.cursor import Cursor
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.step_outcome import Progress


def at(step, tokens=0):
    return Progress(step=step, tokens=tokens, cursor=Cursor())


def test_a_budget_needs_a_limit():
    """A budget without any limit is refused."""
    with pytest.raises(ValueError, match="steps, tokens, minutes or epochs"):
        Budget()


@pytest.mark.parametrize(
    ("budget", "share"), [(Budget(10), 0.5), (Budget(10, 40), 0.75), (Budget(None, 60), 0.5), (Budget(minutes=2), 0.0)]
)
def test_the_nearest_limit_counts(budget, share):
    """The share that is spent is that of the limit which is reached first, and minutes alone spend nothing."""
    assert budget.fraction_spent_by(at(5, 30)) == share
    assert not budget.is_spent_by(at(5, 30))


@pytest.mark.parametrize(
    ("budget", "steps"),
    [(Budget(minutes=2), 7), (Budget(5, minutes=2), 5), (Budget(9, minutes=2), 7), (Budget(epochs=3), 7)],
)
def test_minutes_and_epochs_become_steps(budget, steps):
    """Decided steps end the run, unless it ends earlier anyway."""
    budget = budget.decided(7)
    assert budget.steps == steps
    assert budget.is_spent_by(at(steps))
    assert not budget.is_spent_by(at(steps - 1))
