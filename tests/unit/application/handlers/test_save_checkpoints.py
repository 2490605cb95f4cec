import itertools
from dataclasses import replace

import pytest

from holdfast.adapters.process_group.memory import MemoryProcessGroup
from holdfast.application.handlers.save_checkpoints import SaveOnCadence, SaveOnFailure, SaveOnStop, SaveTimer
from holdfast.application.inbox import Inbox
from holdfast.domain.commands import SaveCheckpoint, SaveReason
from holdfast.domain.data.cursor import Cursor, LanePosition
from holdfast.domain.events import (
    CheckpointFailed,
    CheckpointSaved,
    CheckpointStarted,
    ResourcesAdjusted,
    RunFailed,
    RunStarted,
    StopRequested,
)
from holdfast.domain.resources.balance_policy import Knob
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


class Clock:
    """A clock that stands still unless it is set."""

    now = 0.0

    def __call__(self):
        return self.now


def test_checkpoints_are_due_by_time_too():
    """A save is ordered ten seconds after the last began, not while one is written, and rarely if it was expensive."""
    inbox, clock = Inbox(), Clock()
    timer = SaveTimer(clock=clock)
    save = SaveOnCadence(Cadence(100), Budget(steps=1000), inbox, timer)

    def ordered(seconds, step=1):
        clock.now = seconds
        save(at(step))
        return bool(inbox.drain())

    clock.now = 50.0
    timer.on_start(RunStarted(PROGRESS))
    assert [ordered(second) for second in (50, 59, 60)] == [False, False, True]
    timer.on_save(CheckpointStarted(PROGRESS, SaveReason.PERIODIC))
    assert [ordered(second) for second in (61, 75)] == [False, False]
    timer.on_end_of_save(CheckpointSaved(PROGRESS, "there", SaveReason.PERIODIC, 4.0, 0.5))
    assert [ordered(second) for second in (100, 109, 110)] == [False, False, True]
    assert ordered(100, step=100)
    timer.on_save(CheckpointStarted(PROGRESS, SaveReason.PERIODIC))
    timer.on_end_of_save(CheckpointFailed(PROGRESS, SaveReason.PERIODIC, "no space"))
    assert [ordered(second) for second in (149, 150)] == [False, True]


def test_saves_by_time_change_no_result():
    """A run that saves after each step ends as one that saves at its end only, and keeps the steps to roll back to."""
    ticks = itertools.count(0, 100)
    often = Loop(save_every=3, save_timer=SaveTimer(clock=lambda: next(ticks)))
    rarely = Loop()
    assert often.run() == rarely.run()
    assert len(often.published(CheckpointSaved)) > len(rarely.published(CheckpointSaved)) + 2
    assert often.state == rarely.state


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
