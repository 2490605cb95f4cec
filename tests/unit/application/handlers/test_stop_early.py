"""Early stopping of whole runs in memory: undisturbed, killed and rolled back."""

from dataclasses import replace
from functools import cache

import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.commands import RollBack, StopEarly, StopRun
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.domain.events import EvaluationCompleted, RolledBack, StepCompleted, StopRequested
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.early_stopping import EarlyStopping
from tests.support.encoders import CAPITALS
from tests.support.loop import Loop
from tests.support.streams import Plan

RULE = EarlyStopping("eval_loss", 3, 0.02)
EVERY = 3
BUDGET = 40


def loop_of(store=None, rule=RULE, *, newest=1, steps=BUDGET):
    """Return a run that keeps only the newest checkpoints, and those that early stopping needs."""
    store = store or MemoryStateStore(Retention(newest))
    return Loop(
        store,
        budget=Budget(steps=steps),
        save_every=4,
        evaluate_every=EVERY,
        evaluate_at_start=True,
        early_stopping=rule,
        peak=5.0,
    )


@cache
def undisturbed():
    """Return a run that early stopping ended."""
    loop = loop_of()
    loop.run()
    return loop


def end_of(loop):
    """Return everything that a disturbed run must have in common with an undisturbed one."""
    progress = loop.run()
    stored = [info.progress.step for info in loop.store.list()]
    return progress, loop.state, stored, loop.train.stopped_by


def test_a_run_without_improvement_is_stopped():
    """It ends before its budget, after as many evaluations as the rule says, and its best checkpoint is there."""
    loop, stopped = undisturbed(), undisturbed().train.stopped_by
    measured = [event.evaluation.loss for event in loop.published(EvaluationCompleted)]
    (stop,) = loop.published(StopRequested)
    state = stop.progress.patience
    assert stop.is_early
    assert stopped == StopRun(f"early stopping: {state}", is_early=True)
    assert state.num_without == RULE.patience
    assert state.best_step < stop.progress.step == state.best_step + RULE.patience * EVERY < BUDGET
    assert state.best == measured[state.best_step // EVERY]
    stored = [info.progress.step for info in loop.store.list()]
    assert (stored[0], stored[-1]) == (state.best_step, stop.progress.step)


@pytest.mark.parametrize("kill", ["before", "within", "after", "signal"])
@pytest.mark.parametrize("number", range(3))
def test_a_run_that_is_killed_at_an_evaluation_stops_at_the_same_step(kill, number):
    """Killed or stopped at any evaluation, a run ends with the progress and state of an undisturbed run."""
    whole = undisturbed()
    expected = whole.train._state.progress
    last = expected.step // EVERY
    at = [1, last // 2, last][number]
    first, begun = loop_of(), []

    def begin(_):
        begun.append(first.train._state.progress.step)
        if begun[-1] != at * EVERY or begun.count(at * EVERY) != (2 if kill == "within" else 1):
            return
        if kill == "signal":
            first.inbox.post(StopRun("a signal", 15))
        elif kill != "after":
            raise KeyboardInterrupt

    def end(event):
        if kill == "after" and event.progress.step == at * EVERY:
            raise KeyboardInterrupt

    first.trainable.before_evaluation = begin
    first.bus.subscribe(EvaluationCompleted, end)
    if kill == "signal":
        first.run()
        assert at * EVERY not in [event.progress.step for event in first.published(EvaluationCompleted)]
    else:
        with pytest.raises(KeyboardInterrupt):
            first.run()
    progress, state, stored, stopped = end_of(loop_of(first.store))
    assert (progress, state, stopped) == (expected, whole.state, whole.train.stopped_by)
    assert {progress.patience.best_step, progress.step} <= {*stored}


def test_a_later_start_does_not_train_on():
    """The same command ends at once and says again why; a patience that is raised, or none, trains on and says so."""
    store = MemoryStateStore(Retention(100))
    end = end_of(loop_of(store))
    again = loop_of(store)
    assert end_of(again) == end
    assert not again.published(StepCompleted)
    assert not again.told
    raised = loop_of(MemoryStateStore(Retention(100)), replace(RULE, patience=4))
    straight = raised.run()
    more = loop_of(store, replace(RULE, patience=4))
    assert more.run() == straight
    begin = f"the run was stopped early at step {end[0].step} ({end[0].patience}); it goes on, as "
    assert more.told == [f"{begin}recovery.early_stopping.patience is now 4"]


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (None, "early stopping is switched off"),
        (replace(RULE, metric="eval_bits_per_byte"), "recovery.early_stopping.metric is now eval_bits_per_byte"),
    ],
)
def test_a_run_goes_on_without_the_rule_that_stopped_it(rule, reason):
    """Without early stopping the budget is spent; another metric has a patience of its own."""
    first = loop_of()
    step = first.run().step
    loop = loop_of(first.store, rule, steps=step + 6)
    assert loop.run().step == step + 6
    assert loop.told[0].endswith(f"it goes on, as {reason}")
    over = loop_of(first.store, rule, steps=step)
    assert over.run().step >= step
    assert not over.told


def test_a_roll_back_takes_patience_back():
    """A run that rolls back has the state of its checkpoint, as if the later evaluations had not been made."""
    loop = loop_of(MemoryStateStore(Retention(100)))
    back, left = 2 * EVERY, 4 * EVERY
    loop.at_step(left, lambda: loop.published(RolledBack) or loop.inbox.post(RollBack(back, "why")))
    progress = loop.run()
    (event,) = loop.published(RolledBack)
    assert event.progress.patience.step == back
    assert progress == undisturbed().train._state.progress


def test_a_stop_that_a_roll_back_has_undone_is_no_stop():
    """The evaluation that exhausted the patience was of steps that the run rolls back: it trains on from there."""
    loop = loop_of(MemoryStateStore(Retention(100)))
    last = undisturbed().train._state.progress.step

    def roll_back():
        if not loop.published(RolledBack):
            loop.inbox.post(RollBack(last - 2 * EVERY, "a spike", skip=1))

    loop.at_step(last, roll_back)
    loop.run()
    (event,) = loop.published(RolledBack)
    stops = [stop.progress.step for stop in loop.published(StopRequested)]
    assert event.from_step == last
    assert len([step for step in loop.published(StepCompleted) if step.progress.step > event.progress.step]) > EVERY
    assert len(stops) <= 1


def test_a_stop_of_another_step_is_ignored():
    """``StopEarly`` ends a run only at the step that it names."""
    loop = Loop()
    loop.at_step(3, lambda: loop.inbox.post(StopEarly(2, "why")))
    assert loop.run().step == 8
    loop = Loop()
    loop.at_step(3, lambda: loop.inbox.post(StopEarly(3, "why")))
    assert loop.run().step == 3


def test_a_metric_that_is_not_measured_ends_the_run():
    """The first evaluation shows that the metric of the settings is not measured."""
    with pytest.raises(ConfigurationError, match="measures eval_loss, eval_bits_per_byte"):
        loop_of(rule=replace(RULE, metric="eval_loss/web")).run()


@pytest.mark.parametrize("is_known_at_start", [False, True])
def test_an_evaluation_without_targets_stops_no_run_as_early(is_known_at_start):
    """Without any target to measure a run is refused at its start, or trains to its end without a best evaluation."""
    texts = {"talk": ["a" * 70 + f"LOUD{number}" for number in range(40)]}
    loop = Loop(
        source=MemoryDataSource(texts),
        plan=Plan(encoder=CAPITALS),
        evaluate_every=1,
        evaluate_at_start=is_known_at_start,
        early_stopping=EarlyStopping("eval_loss", 2),
    )
    if is_known_at_start:
        with pytest.raises(DataError, match="no loss to measure"):
            loop.run()
        return
    progress = loop.run()
    assert (progress.step, progress.patience, loop.train.stopped_by) == (loop.budget.steps, None, None)
    assert not loop.published(EvaluationCompleted)
