from dataclasses import replace

import pytest

from holdfast.adapters.resource_probe.memory import QUIET
from holdfast.application.handlers.balance_resources import BalanceResources
from holdfast.application.handlers.save_checkpoints import SaveOnCadence
from holdfast.application.inbox import Inbox
from holdfast.domain.commands import AdjustResources
from holdfast.domain.events import BatchSplit, CheckpointSaved, ContractWeakened, ResourcesAdjusted, StepCompleted
from holdfast.domain.resources.balance_policy import (
    BalanceState,
    Knob,
    KnobChange,
    KnobSetting,
    Pressure,
    ResourceReading,
)
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.cadence import Cadence
from holdfast.domain.training.step_outcome import DataSupply, Progress, StepOutcome
from tests.support.loop import Loop

PROGRESS = Progress(7, 700)
CHANGE = KnobChange(Knob.THREADS, 2, 4, "why")
STATE = BalanceState({Knob.THREADS: KnobSetting(2, 2, 1, 8), Knob.MICRO_BATCH: KnobSetting(8, 8, 1, 8)})


class Remembering:
    """A policy that remembers what it is told and answers with ``change``."""

    def __init__(self, change=None):
        self.change = change
        self.told = []
        self.states = []

    def after_steps(self, state, reading):
        self.told.append(reading)
        self.states.append(state)
        return state, self.change

    def after_save(self, state, saved):
        self.told.append(saved)
        return state, self.change


def step_of(seconds, wait, ready=0):
    supply = DataSupply(wait, batches_ready=ready)
    return StepCompleted(PROGRESS, StepOutcome([1.0], 1, 8, 1.0, 0.1, 8, seconds, supply))


def balance(policy, sample=None, inbox=None):
    return BalanceResources(policy, STATE, Inbox() if inbox is None else inbox, lambda: sample)


def test_a_step_is_told_with_what_the_machine_had():
    """The policy gets a step's seconds, its wait and what was ready, and the newest sample of the machine."""
    policy = Remembering()
    sample = replace(QUIET, memory=0.6, processors=0.9, pressure=Pressure(memory=0.2))
    balance(policy, sample).on_step(step_of(0.5, 0.1, ready=3))
    balance(policy).on_step(step_of(0.5, 0.1, ready=3))
    assert policy.told == [ResourceReading(0.5, 0.1, 3, 1, 0.6, 0.9, 0.2), ResourceReading(0.5, 0.1, 3, 1)]


def test_short_steps_are_told_together():
    """Steps of milliseconds are one reading with the sum of their times, each counted once."""
    policy = Remembering()
    handler = balance(policy)
    for ready in (1, 2, 0, 1, 0, 0):
        handler.on_step(step_of(0.0625, 0.03125, ready))
    assert policy.told == [ResourceReading(0.1875, 0.09375, 2, 3), ResourceReading(0.1875, 0.09375, 1, 3)]


def test_a_change_is_asked_for_with_its_reason():
    """What the policy wants after a step or a save is a command to the loop."""
    inbox = Inbox()
    handler = balance(Remembering(CHANGE), inbox=inbox)
    handler.on_step(step_of(1.0, 0.0))
    handler.on_save(CheckpointSaved(PROGRESS, "here", "periodic", 1.0, 0.5))
    assert inbox.drain() == [AdjustResources(Knob.THREADS, 2, 4, "why")] * 2


@pytest.mark.parametrize(("rows", "usual"), [(4, 4), (8, 8)])
def test_micro_batches_that_somebody_else_split_stay_split(rows, usual):
    """After a shortage the smaller micro-batch is the usual one, so that the policy does not undo the remedy."""
    policy = Remembering()
    handler = balance(policy)
    handler.on_split(BatchSplit(PROGRESS, rows))
    handler.on_step(step_of(1.0, 0.0))
    setting = policy.states[0].knobs[Knob.MICRO_BATCH]
    assert (setting.value, setting.usual, setting.maximum) == (rows, usual, usual)


def test_the_loop_turns_every_knob_and_says_so():
    """Between steps feed, micro-batch and rhythm of saves change, each with an event, and only rows weaken the run."""
    loop = Loop(plan=replace(Loop.plan, mode="stream", prefetch=2, workers=1), budget=Budget(steps=8))
    saves = SaveOnCadence(Cadence(0), loop.budget, loop.inbox)
    loop.bus.subscribe(StepCompleted, saves)
    loop.bus.subscribe(ResourcesAdjusted, saves.on_adjusted)
    orders = [
        AdjustResources(Knob.PREFETCH, 2, 5, "deeper"),
        AdjustResources(Knob.THREADS, 1, 3, "more"),
        AdjustResources(Knob.MICRO_BATCH, 4, 1, "smaller"),
        AdjustResources(Knob.SAVE_EVERY, 0, 3, "now and then"),
    ]
    for number, order in enumerate(orders, 1):
        loop.at_step(number, lambda order=order: loop.inbox.post(order))
    loop.run()
    told = [(event.progress.step, event.knob, event.before, event.after, event.reason) for event in adjusted(loop)]
    assert told == [(n, o.knob, o.before, o.after, o.reason) for n, o in enumerate(orders, 1)]
    assert (loop.train._feed.prefetch, loop.train._feed.threads) == (5, 3)
    assert [event.outcome.micro_batch for event in loop.published(StepCompleted)] == [4, 4, 4, 1, 1, 1, 1, 1]
    assert [event.progress.step for event in loop.published(ContractWeakened)] == [3]
    assert [info.progress.step for info in loop.store.list()] == [6, 8]


def test_a_run_that_is_balanced_learns_the_same():
    """Depth and threads that change all the time leave rows, losses and state as they are without."""
    plain = Loop(plan=replace(Loop.plan, mode="stream", prefetch=2, lanes=2))
    turned = Loop(plan=plain.plan)
    for step in range(1, 8):
        knob = (Knob.PREFETCH, Knob.THREADS)[step % 2]
        turned.at_step(step, lambda knob=knob, step=step: turned.inbox.post(AdjustResources(knob, 1, step, "why")))
    plain.run()
    turned.run()
    assert len(adjusted(turned)) == 7
    assert turned.rows == plain.rows
    assert turned.losses.tolist() == plain.losses.tolist()
    assert turned.state == plain.state


def adjusted(loop):
    return loop.published(ResourcesAdjusted)
