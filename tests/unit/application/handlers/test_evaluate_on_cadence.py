import pytest

from holdfast.application.handlers.evaluate_on_cadence import EvaluateOnCadence
from holdfast.application.inbox import Inbox
from holdfast.domain.commands import Evaluate
from holdfast.domain.events import (
    RunStarted,
)
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.cadence import Cadence
from holdfast.domain.training.step_outcome import Progress
from tests.support.events import at, orders


def test_evaluations_are_due_on_their_cadence_and_at_the_end():
    """An evaluation is ordered at each multiple and once at the end of the budget."""
    inbox = Inbox()
    handler = EvaluateOnCadence(Cadence(2), Budget(steps=5), inbox, at_start=False)
    assert orders(handler.on_step, inbox, map(at, range(1, 6))) == [[], [Evaluate()], [], [Evaluate()], [Evaluate()]]


@pytest.mark.parametrize(("step", "at_start", "expected"), [(0, True, 1), (0, False, 0), (7, True, 0)])
def test_only_a_new_run_is_evaluated_at_its_start(step, at_start, expected):
    """The untrained model is measured if asked for, a resumed one is not measured again."""
    inbox = Inbox()
    EvaluateOnCadence(Cadence(0), Budget(steps=9), inbox, at_start=at_start).on_start(RunStarted(Progress(step)))
    assert inbox.drain() == [Evaluate()] * expected
