from __future__ import annotations

import pytest

from holdfast.application.handlers.evaluate_on_cadence import AwaitVerdicts
from holdfast.application.inbox import Inbox
from holdfast.domain.commands import Evaluate, StopRun
from holdfast.domain.events import EvaluationCompleted, RunStarted
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.cadence import Cadence
from holdfast.domain.training.step_outcome import Evaluation, Progress
from holdfast.domain.tuning.trial import TrialVerdict

PRUNE = TrialVerdict(10, "pruned at step 10")


class Waiting:
    """A run that waits for verdicts; ``arrives`` is the verdict that comes with the third look."""

    def __init__(self, *known, arrives=None):
        self.verdicts, self.arrives, self.looks = list(known), arrives, 0
        self.inbox = Inbox()
        self.handler = AwaitVerdicts(self.at, Cadence(10), Budget(steps=30), self.inbox, sleep=self.sleep)

    def at(self, step):
        return next((verdict for verdict in self.verdicts if verdict.step == step), None)

    def sleep(self, _seconds):
        self.looks += 1
        if self.looks == 3 and self.arrives is not None:
            self.verdicts.append(self.arrives)
        assert self.looks < 100, "it waits for ever"

    def evaluate(self, step):
        self.handler.on_evaluation(EvaluationCompleted(Progress(step), Evaluation(1.0, 1, 1)))
        return self.inbox.drain()

    def start(self, step):
        self.handler.on_start(RunStarted(Progress(step)))
        return self.inbox.drain()


def test_a_run_waits_for_the_verdict():
    """After an evaluation the run waits until the verdict on its step is there, and then goes on or stops."""
    going, stopping = Waiting(arrives=TrialVerdict(10)), Waiting(arrives=PRUNE)
    assert (going.evaluate(10), going.looks) == ([], 3)
    assert (stopping.evaluate(10), stopping.looks) == ([StopRun(PRUNE.reason)], 3)


def test_a_stop_ends_the_waiting():
    """A run that is asked to stop waits no longer."""
    run = Waiting()
    run.inbox.post(StopRun("received SIGTERM", 15))
    assert run.evaluate(10) == [StopRun("received SIGTERM", 15)]
    assert run.looks == 0


def test_the_evaluation_before_training_gets_no_verdict():
    """The evaluation at step 0 is not waited for, and a new run asks for no evaluation here."""
    run = Waiting()
    assert run.evaluate(0) == run.start(0) == []


@pytest.mark.parametrize(
    ("step", "known", "commands"),
    [
        (10, [], [Evaluate()]),
        (10, [TrialVerdict(10)], []),
        (10, [PRUNE], [StopRun(PRUNE.reason)]),
        (13, [TrialVerdict(10)], []),
        (30, [TrialVerdict(30, "pruned at step 30")], []),
    ],
)
def test_a_start_makes_up_for_what_a_kill_cut_off(step, known, commands):
    """A start evaluates a due step without a verdict, obeys a verdict that is there, and stops no finished run."""
    assert Waiting(*known).start(step) == commands


def test_a_finished_run_is_not_stopped():
    """A verdict on the last step of the budget changes nothing, as nothing is left to stop."""
    assert Waiting(TrialVerdict(30, "pruned at step 30")).evaluate(30) == []
