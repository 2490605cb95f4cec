from dataclasses import replace

import pytest

from holdfast.adapters.process_group.memory import MemoryProcessGroup
from holdfast.application.handlers.save_checkpoints import SaveOnCadence, SaveOnFailure, SaveOnStop
from holdfast.application.inbox import Inbox
from holdfast.domain.commands import SaveCheckpoint, SaveReason
from holdfast.domain.data.cursor import Cursor, LanePosition
from holdfast.domain.events import (
    ResourcesAdjusted,
    RunFailed,
    StopRequested,
)
from holdfast.domain.resources.knobs import Knob
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.cadence import Cadence
from tests.support.events import PROGRESS, at, orders
from tests.support.loop import Loop


def test_checkpoints_are_due_on_their_cadence_and_at_the_end():
    """A save is ordered at each multiple and once at the end of the budget, as the final one."""
    inbox = Inbox()
    handler = SaveOnCadence(Cadence(2), Budget(steps=4), inbox)
    periodic, final = [SaveCheckpoint()], [SaveCheckpoint(SaveReason.FINAL)]
    assert orders(handler, inbox, map(at, range(1, 5))) == [[], periodic, [], final]
    never = SaveOnCadence(Cadence(0), Budget(steps=3), inbox)
    assert orders(never, inbox, map(at, range(1, 4))) == [[], [], final]


def test_checkpoints_follow_the_rhythm_that_a_run_can_afford():
    """From its adjustment on, saves are due at multiples of the new number of steps; no other adjustment counts."""
    inbox = Inbox()
    handler = SaveOnCadence(Cadence(2), Budget(steps=99), inbox)
    handler.on_adjusted(ResourcesAdjusted(PROGRESS, Knob.PREFETCH, 4, 5, "why"))
    assert orders(handler, inbox, map(at, range(1, 5))) == [[], [SaveCheckpoint()], [], [SaveCheckpoint()]]
    handler.on_adjusted(ResourcesAdjusted(PROGRESS, Knob.SAVE_EVERY, 2, 4, "why"))
    assert orders(handler, inbox, map(at, range(5, 9))) == [[], [], [], [SaveCheckpoint()]]


@pytest.mark.parametrize(("signal", "reason"), [(None, SaveReason.FINAL), (15, SaveReason.PREEMPT)])
def test_a_stop_is_answered_with_a_checkpoint(signal, reason):
    """A run that is asked to stop saves, and the checkpoint tells whether a signal asked."""
    inbox = Inbox()
    SaveOnStop(inbox)(StopRequested(PROGRESS, "why", signal))
    assert inbox.drain() == [SaveCheckpoint(reason)]


@pytest.mark.parametrize(("lanes", "steps"), [((), [3]), ((LanePosition(),), [])])
def test_a_rank_whose_peers_are_gone_saves_what_it_knows_in_whole(lanes, steps):
    """The first of two ranks saves without waiting for the other, unless the position in the data is known in parts."""
    first, _ = MemoryProcessGroup.linked(2, timeout_seconds=1)  # a collective of the two would fail
    loop = Loop(group=first)
    progress = replace(PROGRESS, step=3, cursor=Cursor(12, lanes))
    SaveOnFailure(loop.checkpoints, alone=MemoryProcessGroup())(RunFailed(progress, RuntimeError("lost")))
    assert [info.progress.step for info in loop.store.list()] == steps
