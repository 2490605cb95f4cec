from __future__ import annotations

import pytest

from holdfast.domain.tuning.trial import StudyPlan, Trial, TrialState, best_of_trials, may_begin, seen_by

RUNNING, COMPLETE, PRUNED, FAILED = TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAILED


def trials(*states, tokens=100, values=()):
    found = [*values, *[None] * len(states)]
    return [Trial(number, state, value=found[number], tokens=tokens) for number, state in enumerate(states)]


@pytest.mark.parametrize(
    ("states", "parallel", "is_ready"),
    [
        ([], 1, True),
        ([RUNNING], 1, False),
        ([RUNNING], 2, True),
        ([RUNNING, COMPLETE], 2, False),
        ([COMPLETE, RUNNING], 2, True),
        ([PRUNED, FAILED, RUNNING, RUNNING], 3, True),
        ([PRUNED, RUNNING, COMPLETE, COMPLETE], 3, False),
    ],
)
def test_a_trial_begins_once_those_before_have_ended(states, parallel, is_ready):
    """The next trial waits for all trials but the last ones, whose number is that of the trials that run beside it."""
    known = trials(*states)
    assert may_begin(len(known), known, parallel) is is_ready
    assert len(seen_by(len(known), known, parallel)) == max(0, len(known) - parallel + 1)


def test_the_best_trial_is_a_complete_one():
    """A pruned trial is never the best, however low its value, and of two equal ones the earlier is."""
    known = trials(COMPLETE, PRUNED, COMPLETE, COMPLETE, FAILED, values=(2.0, 0.1, 1.0, 1.0))
    assert best_of_trials(known).number == 2
    assert best_of_trials(known, maximizes=True).number == 0
    assert best_of_trials(trials(COMPLETE, COMPLETE, values=(1.0, 1.0)), maximizes=True).number == 0
    assert best_of_trials(trials(PRUNED, FAILED, values=(1.0,))) is None


def test_the_number_of_trials_ends_a_study():
    """Trials are permitted up to their number."""
    plan = StudyPlan(trials=2)
    assert plan.permits(1, trials(COMPLETE))
    assert not plan.permits(2, trials(COMPLETE, COMPLETE))


def test_tokens_end_a_study():
    """No trial begins once the trials that it depends on have trained on the tokens."""
    plan = StudyPlan(parallel=2, tokens=200)
    assert plan.permits(2, trials(COMPLETE, RUNNING))
    assert not plan.permits(3, trials(COMPLETE, PRUNED, RUNNING))


def test_failures_in_a_row_end_a_study():
    """So many failures in a row end a study, and one success between them starts the count again."""
    plan = StudyPlan(trials=9, most_failures=2)
    assert not plan.permits(2, trials(FAILED, FAILED))
    assert plan.permits(3, trials(FAILED, COMPLETE, FAILED))
    assert plan.has_failed(trials(COMPLETE, FAILED, FAILED))
