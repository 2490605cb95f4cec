from __future__ import annotations

import pytest

from holdfast.bootstrap.operations.trial_process import TrialEvents
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.tuning.trial import TrialEnd, TrialState
from tests.support.run_folders import add_event


@pytest.fixture
def events(tmp_path):
    """Return a function that adds an event to the folder of a trial."""

    def add(name, **fields):
        add_event(tmp_path, name, **fields)

    return add


def read(tmp_path, metric="eval_loss", *, takes_best=False):
    trial = TrialEvents(tmp_path, metric, takes_best=takes_best)
    trial.read()
    return trial


def evaluate(events, step, loss, **more):
    events("EvaluationCompleted", step=step, tokens=step * 10, loss=loss, bits_per_byte=loss / 2, **more)


def test_evaluations_are_returned_once(tmp_path, events):
    """New evaluations after the first step are returned once, in their order, and that of step 0 never."""
    evaluate(events, 0, 9.0)
    evaluate(events, 5, 3.0)
    trial = read(tmp_path)
    assert trial.take() == [(5, 3.0)]
    evaluate(events, 10, 2.0)
    trial.read()
    assert trial.take() == [(10, 2.0)]
    assert trial.take() == []


@pytest.mark.parametrize(
    ("metric", "value"), [("eval_bits_per_byte", 1.5), ("eval_loss/news", 4.0), ("eval_bits_per_byte/news", 2.0)]
)
def test_each_metric_of_an_evaluation_can_be_chosen(tmp_path, events, metric, value):
    """The metric may be that of a source or a set."""
    evaluate(events, 5, 3.0, parts={"news": {"loss": 4.0, "bits_per_byte": 2.0}})
    assert read(tmp_path, metric).take() == [(5, value)]


def test_a_metric_that_is_not_measured_is_named(tmp_path, events):
    """A metric that no evaluation has is refused, with those that there are."""
    evaluate(events, 5, 3.0)
    with pytest.raises(ConfigurationError, match="measures eval_loss, eval_bits_per_byte: choose one of these"):
        read(tmp_path, "eval_loss/law")


@pytest.mark.parametrize(("takes_best", "value"), [(False, 2.5), (True, 2.0)])
def test_a_complete_trial_has_its_last_or_best_value(tmp_path, events, takes_best, value):
    """The value of a trial that spent its budget is its last evaluation, or its best one if the study asks for that."""
    events("RunStarted", step=0, tokens=0)
    for step, loss in ((5, 3.0), (10, 2.0), (15, 2.5)):
        evaluate(events, step, loss)
    events("RunFinished", step=15, tokens=150)
    assert read(tmp_path, takes_best=takes_best).end() == TrialEnd(TrialState.COMPLETE, value, 150)


def test_the_best_accuracy_is_the_highest(tmp_path, events):
    """Of preferences the highest share of pairs in the right order counts."""
    for step, accuracy in ((5, 0.5), (10, 0.75), (15, 0.625)):
        evaluate(events, step, 1.0, reward_accuracy=accuracy)
    assert read(tmp_path, "eval_reward_accuracy", takes_best=True).end().value == 0.75


def test_a_step_that_is_taken_again_counts_once(tmp_path, events):
    """After a kill the evaluation of a step that is taken again replaces the first one."""
    evaluate(events, 5, 3.0)
    evaluate(events, 10, 2.0)
    events("RunStarted", step=4, tokens=40)
    evaluate(events, 5, 3.0)
    assert read(tmp_path).end().value == 3.0


def test_a_stop_with_a_reason_is_a_pruned_trial(tmp_path, events):
    """A trial that was asked to stop is pruned, with that reason, unless a later start went on."""
    events("RunStarted", step=0, tokens=0)
    evaluate(events, 5, 3.0)
    events("StopRequested", step=5, tokens=50, reason="pruned at step 5", signal=None, is_early=False)
    events("RunFinished", step=5, tokens=50)
    assert read(tmp_path).end() == TrialEnd(TrialState.PRUNED, 3.0, 50, "pruned at step 5")
    events("RunStarted", step=5, tokens=50)
    events("RunFinished", step=5, tokens=50)
    assert read(tmp_path).end().state is TrialState.COMPLETE


@pytest.mark.parametrize("more", [{"is_early": True}, {"is_early": False}])
def test_early_stopping_and_the_end_of_data_complete_a_trial(tmp_path, events, more):
    """A trial that early stopping or the end of its data ended is complete."""
    events("RunStarted", step=0, tokens=0)
    evaluate(events, 5, 3.0)
    if not more["is_early"]:
        events("DataEnded", step=5, tokens=50)
    events("StopRequested", step=5, tokens=50, reason="no improvement", signal=None, **more)
    assert read(tmp_path).end().state is TrialState.COMPLETE


@pytest.mark.parametrize(("losses", "note"), [([], "no evaluation was made"), (["NaN"], "eval_loss is not finite")])
def test_without_a_number_a_trial_has_failed(tmp_path, events, losses, note):
    """A trial without an evaluation, or whose last one is no number, has failed and says why."""
    events("RunStarted", step=0, tokens=0)
    for loss in losses:
        events("EvaluationCompleted", step=5, tokens=50, loss=loss, bits_per_byte=loss)
    end = read(tmp_path).end()
    assert end.state is TrialState.FAILED
    assert end.note.startswith(note)
