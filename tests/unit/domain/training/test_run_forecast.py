"""The arithmetic that turns the times of a trial into those of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.errors import StateError
from holdfast.domain.training.run_forecast import (
    RunLength,
    TrialMark,
    TrialTimes,
    forecast_time,
    num_checkpoints_kept,
    steps_within,
    trial_times,
)


def marks_of(*seconds_of_steps, start=10.0, evaluated=(), saved=(), at_start=0.0):
    """Return the marks of steps of these seconds, after which ``evaluated`` and ``saved`` steps take more."""
    now, marks = start, [TrialMark("start", 0, start)]
    if at_start:
        now += at_start
        marks.append(TrialMark("evaluation", 0, now))
    for step, seconds in enumerate(seconds_of_steps, 1):
        now += seconds
        marks.append(TrialMark("step", step, now))
        if step in dict(evaluated):
            now += dict(evaluated)[step]
            marks.append(TrialMark("evaluation", step, now))
        if step in dict(saved):
            marks.append(TrialMark("save", step, now))
            now += dict(saved)[step]
    return marks, now


def test_the_first_steps_belong_to_the_start():
    """The time of a step is that of a settled one, and what the first steps take longer counts once."""
    marks, now = marks_of(5.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0)
    times = trial_times(marks, now + 0.5)
    assert times.step == 1.0
    assert times.start == pytest.approx(10.0 + 4.0 + 2.0 + 1.0)
    assert times.end == pytest.approx(0.5)
    assert (times.evaluation, times.save, times.first_evaluation) == (0.0, 0.0, 0.0)


def test_evaluations_and_saves_do_not_count_as_steps():
    """An evaluation and the wait for a save are measured by themselves, and lengthen no step."""
    busy = {"evaluated": [(4, 7.0), (8, 7.0)], "saved": [(4, 0.25), (8, 0.25)], "at_start": 9.0}
    marks, now = marks_of(*[1.0] * 8, **busy)
    times = trial_times(marks, now)
    assert (times.step, times.evaluation, times.save) == (pytest.approx(1.0), pytest.approx(7.0), pytest.approx(0.25))
    assert times.first_evaluation == pytest.approx(9.0)
    assert times.start == pytest.approx(10.0)


def test_a_trial_of_one_step_measures_nothing():
    """A trial that took one step is refused, as no interval lies between two of its steps."""
    marks, now = marks_of(1.0)
    with pytest.raises(StateError, match="fewer than two steps"):
        trial_times(marks, now)


def test_the_whole_run_is_the_sum_of_its_parts():
    """The last save belongs to the end of the trial and of the run, and counts once."""
    length = RunLength.of(100, evaluation_every=30, save_every=50)
    assert length == RunLength(100, 4, 2)
    found = forecast_time(TrialTimes(20.0, 3.0, 2.0, 5.0, 1.0, 8.0), length)
    assert (found.start, found.steps, found.evaluations, found.saves, found.end) == (20.0, 200.0, 23.0, 1.0, 8.0)
    assert found.total == 252.0
    assert found.cost(36.0) == pytest.approx(2.52)


def test_the_last_step_is_evaluated_and_saved_without_a_cadence():
    """A cadence of 0 leaves one evaluation and one checkpoint, those of the end."""
    assert RunLength.of(10, evaluation_every=0, save_every=0) == RunLength(10, 1, 1)


@pytest.mark.parametrize(
    ("steps", "rules", "kept"),
    [
        (1000, {"every": 100, "newest": 3}, 3),
        (250, {"every": 100, "newest": 3}, 3),
        (150, {"every": 100, "newest": 3}, 2),
        (1000, {"every": 0, "newest": 3}, 1),
        (1000, {"every": 100, "newest": 2, "keep_every": 500}, 3),
        (1000, {"every": 100, "newest": 2, "keep_every": 300}, 4),
        (1000, {"every": 100, "newest": 2, "best": 2}, 4),
        (1000, {"every": 0, "newest": 1, "keep_every": 500}, 1),
        (10**12, {"every": 10, "newest": 2, "keep_every": 10**6}, 10**6 + 1),
    ],
)
def test_the_checkpoints_kept_follow_retention(steps, rules, kept):
    """The newest ones, the milestones and the best are counted, none twice, and never more than were saved."""
    assert num_checkpoints_kept(steps, **rules) == kept


@given(
    steps=st.integers(1, 300),
    every=st.integers(1, 40),
    newest=st.integers(1, 10),
    keep_every=st.integers(0, 100),
    best=st.integers(0, 4),
)
def test_the_checkpoints_kept_are_those_of_a_list_of_all(steps, every, newest, keep_every, best):
    """The number is that of a list of all saves from which retention takes its checkpoints."""
    saves = [*range(every, steps, every), steps]
    milestones = {step for step in saves if keep_every and step % keep_every == 0}
    kept = min(len(saves), len(milestones.union(saves[-newest:])) + best)
    rules = {"every": every, "newest": newest, "keep_every": keep_every, "best": best}
    assert num_checkpoints_kept(steps, **rules) == kept


SECONDS = st.floats(0.0, 100.0)


@given(
    seconds=st.floats(-10.0, 10_000.0),
    times=st.builds(TrialTimes, SECONDS, SECONDS, st.floats(0.01, 10.0), SECONDS, SECONDS, SECONDS),
    evaluation_every=st.integers(0, 100),
    save_every=st.integers(0, 100),
)
def test_the_steps_of_a_time_fill_it(seconds, times, evaluation_every, save_every):
    """By its forecast the run ends within the time, unless that is one step, and more steps would not fit."""
    cadence = {"evaluation_every": evaluation_every, "save_every": save_every}
    steps = steps_within(seconds, times, **cadence)
    assert steps >= 1
    if steps > 1:
        assert forecast_time(times, RunLength.of(steps, **cadence)).total <= seconds + 1e-6
    more = forecast_time(times, RunLength.of(steps + 1, **cadence)).total
    assert more > seconds - times.evaluation - times.save - 1e-6
