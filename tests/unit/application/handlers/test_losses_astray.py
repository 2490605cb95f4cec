"""Losses and gradients that are no number, and losses that spike."""

import json
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.application.handlers.roll_back import (
    ProtectRollBackTarget,
    RollBackOnDrops,
    RollBackOnSpike,
    RollBackPlanner,
)
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.commands import SaveCheckpoint
from holdfast.domain.errors import TrainingError
from holdfast.domain.events import (
    CheckpointStarted,
    RollBackSkipped,
    RolledBack,
    RunStarted,
    StepCompleted,
    UpdateDropped,
)
from holdfast.domain.fault_tolerance.health import REMEMBERED, Health, SpikePolicy
from holdfast.domain.training.budget import Budget
from tests.support.loop import Loop
from tests.support.streams import Plan

STEPS, EVERY = 40, 10
POLICY = SpikePolicy(window=12, num_losses=3)


def loop_of(bad=(), *, value=math.nan, limit=3, most=8, spike=True, store=None, save_every=EVERY):
    """Return a run whose batches ``bad``, by the number they have undisturbed, have the loss ``value``."""
    more = {} if store is None else {"store": store}
    loop = Loop(plan=Plan("stream", seed=11), save_every=save_every, budget=Budget(steps=STEPS), peak=0.5, **more)
    poisoned = {str(batches()[number]) for number in bad}
    inner = loop.trainable.inner.update

    def update(**options):
        made = inner(**options)
        accumulate = made.accumulate

        def poison(part, **weights):
            loss = accumulate(part, **weights)
            return value * part.num_targets if str(part.input_ids.tolist()) in poisoned else loss

        made.accumulate = poison
        return made

    loop.trainable.inner.update = update
    returns = RollBackPlanner(save_every, most)
    handlers = [RollBackOnDrops(limit, returns, loop.inbox)]
    handlers += [RollBackOnSpike(POLICY, returns, loop.inbox)] if spike else []
    for kind in (RunStarted, StepCompleted):
        for handler in handlers:
            loop.bus.subscribe(kind, handler)
    loop.bus.subscribe(CheckpointStarted, ProtectRollBackTarget(max(limit, POLICY.num_losses), save_every, loop.store))
    return loop


@cache
def batches():
    """Return the rows of each batch, by its number; no two are the same."""
    loop = Loop(plan=Plan("stream", seed=11), budget=Budget(steps=2 * STEPS), peak=0.5)
    loop.run()
    return loop.rows


def test_a_loss_that_is_no_number_drops_the_update():
    """The step counts and its batch is consumed, parameters stay, and the run goes on as if it had had no gradient."""
    loop, states = loop_of([17]), {}
    loop.bus.subscribe(StepCompleted, lambda event: states.update({event.progress.step: loop.state}))
    progress = loop.run()
    assert states[16] == states[17] != states[18]
    assert [(event.progress.step, event.reason) for event in loop.published(UpdateDropped)] == [(17, "the loss is nan")]
    assert progress.step == STEPS
    assert progress.cursor.samples == STEPS * loop.plan.rows
    assert progress.health.dropped == 1
    assert not loop.published(RolledBack)


@pytest.mark.parametrize("kill", [None, 25, 26, 27, 21, 35])
def test_dropped_updates_in_a_row_take_the_run_back(kill):
    """The run goes back to the last good checkpoint and behind the bad batches; killed anywhere, it ends the same."""
    whole = loop_of([24, 25, 26])
    end = whole.run()
    assert end.health.returns == (20,)
    assert end.health.dropped == 3
    assert end.cursor.samples == (STEPS + 6) * whole.plan.rows
    if kill is None:
        return
    first = loop_of([24, 25, 26])

    def vanish(step, _):
        if step == kill and (kill > 23 or first.published(RolledBack)):
            raise KeyboardInterrupt

    first.trainable.before_part = vanish
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = loop_of([24, 25, 26], store=first.store)
    assert second.run() == end
    assert second.state == whole.state


@pytest.mark.parametrize("left", [32, 30, 27, 20])
def test_a_return_that_is_killed_as_it_sets_checkpoints_aside_ends_alike(left):
    """Killed with none, some or all of the later checkpoints set aside, a run decides the same again."""
    bad = range(31, 34)
    whole, first = loop_of(bad), loop_of(bad)
    for loop in (whole, first):
        for step in (32, 27):
            loop.at_step(step, lambda loop=loop: loop.inbox.post(SaveCheckpoint()))
    supersede = first.store.supersede

    def vanish(_):
        supersede(left)
        raise KeyboardInterrupt

    first.store.supersede = vanish
    with pytest.raises(KeyboardInterrupt):
        first.run()
    first.store.supersede = supersede
    second = loop_of(bad, store=first.store)
    assert second.run() == whole.run()
    assert second.state == whole.state


@pytest.mark.parametrize("spike", [False, True])
def test_what_is_gone_back_to_outlives_newer_checkpoints(spike):
    """A run that keeps one checkpoint, and saves at odd steps too, goes back as one that keeps them all."""
    value = 9.0 if spike else math.nan
    whole, loop = (loop_of([21, 22, 23], value=value, store=store) for store in (None, MemoryStateStore(Retention(1))))
    for step in (13, 17, 21, 22):
        loop.at_step(step, lambda: loop.inbox.post(SaveCheckpoint()))
    assert loop.run() == whole.run()
    assert loop.state == whole.state
    assert loop.published(RolledBack)[0].progress.step == 10
    assert [info.progress.step for info in loop.store.list()] == [30, 40]


def test_a_run_without_an_old_enough_checkpoint_ends():
    """Updates that are dropped in a row before the first checkpoint end the run with a sentence that says so."""
    with pytest.raises(TrainingError, match=r"3 updates in a row .* no checkpoint of step 0"):
        loop_of([4, 5, 6]).run()


def test_a_spike_takes_the_run_back_behind_it():
    """A spike is skipped and the run ends; without the handler it is trained on."""
    loop, other = loop_of(range(25, 28), value=9.0), loop_of(range(25, 28), value=9.0, spike=False)
    assert loop.run().health.returns == (20,)
    assert not other.run().health.returns
    (event,) = loop.published(RolledBack)
    assert (event.from_step, event.progress.step) == (27, 20)
    assert loop.rows[21] == batches()[28]


def test_a_long_spike_is_left_by_longer_and_longer_steps():
    """Each return to the same checkpoint passes over more batches, so that few returns leave a long bad stretch."""
    loop = loop_of(range(25, 50), value=9.0)
    end = loop.run()
    assert end.step == STEPS
    assert 2 <= len(end.health.returns) <= 4
    assert set(end.health.returns) == {20}


@pytest.mark.parametrize("has_older", [True, False])
def test_a_checkpoint_that_is_at_fault_is_left(has_older):
    """If the loss rises again behind a checkpoint, whatever is read, an older one is taken if there is one."""
    every = EVERY if has_older else 2 * EVERY
    loop = loop_of(save_every=every)
    inner, spoilt = loop.trainable.inner.update, [22]

    def update(*, step, **options):
        made = inner(step=step, **options)
        accumulate = made.accumulate
        made.accumulate = lambda part, **weights: (
            9.0 * part.num_targets if spoilt and step > spoilt[0] else accumulate(part, **weights)
        )
        return made

    loop.trainable.inner.update = update
    loop.bus.subscribe(RolledBack, lambda event: spoilt.clear() if event.progress.step < 20 else None)
    if has_older:
        assert loop.run().health.returns == (20,) * 4 + (10,)
    else:
        with pytest.raises(TrainingError, match="after 8 roll-backs"):
            loop.run()


def test_too_many_returns_end_the_run():
    """A run that finds no way out ends with an error after so many returns, and ends again when it is started again."""
    loop = loop_of(range(25, 80), value=9.0, most=2)
    with pytest.raises(TrainingError, match="after 2 roll-backs"):
        loop.run()
    with pytest.raises(TrainingError, match="after 2 roll-backs"):
        loop_of(range(25, 80), value=9.0, most=2, store=loop.store).run()


def test_a_spike_before_the_first_checkpoint_is_told():
    """Training goes on where there is nothing to go back to, and that is said once."""
    loop = loop_of(range(25, 28), value=9.0, save_every=0)
    assert loop.run().step == STEPS
    assert len(loop.published(RollBackSkipped)) == 1


LOSSES = st.lists(st.none() | st.floats(0.01, 20), max_size=REMEMBERED)


@given(LOSSES, st.integers(1, 20), st.integers(1, 5))
def test_a_spike_begins_once(losses, rises, patience):
    """Whatever came before, a lasting rise far above it is one spike at most, found at its ``patience``-th loss."""
    policy = SpikePolicy(window=16, num_losses=patience)
    high = [1000.0 + number for number in range(rises)]
    ends = [number + 1 for number in range(rises) if policy.begins([*losses, 0.005, *high[: number + 1]])]
    assert ends in ([], [patience])
    calm = [1.0] * 16
    assert [n for n in range(rises) if policy.begins([*calm, *high[: n + 1]])] == [patience - 1] * (rises >= patience)


@given(st.lists(st.booleans(), max_size=9), st.integers(1, 5))  # half of the window stays filled with losses
def test_dropped_updates_are_of_the_spike_they_lie_in(dropped, patience):
    """Losses far above the usual and dropped updates are one spike, in any order, but not without a loss."""
    policy, calm = SpikePolicy(window=16, num_losses=patience), [1.0] * 16
    late = [None if is_dropped else 1000.0 for is_dropped in dropped]
    found = {end: num_bad for end in range(1, len(late) + 1) if (num_bad := policy.begins([*calm, *late[:end]]))}
    first = max(patience, dropped.index(False) + 1) if False in dropped else 100
    assert found == ({first: first} if first <= len(late) else {})


@pytest.mark.parametrize("noise", ["normal", "heavy"])
def test_noisy_losses_do_not_spike(noise):
    """Falling losses with a noise of a tenth, of normal or of heavy tails, are no spike in 300 runs of 400 steps."""
    policy, chance = SpikePolicy(), np.random.default_rng(5)
    step = np.arange(400)
    found = 0
    for _ in range(300):
        drawn = chance.standard_t(3, 400) if noise == "heavy" else chance.standard_normal(400)
        losses = ((2 + 7 * np.exp(-step / 60)) * (1 + 0.1 * drawn)).tolist()
        found += sum(policy.begins(losses[max(0, end - REMEMBERED) : end]) for end in range(1, 401))
    assert found == 0


@given(LOSSES, st.integers(0, 10**6), st.lists(st.integers(0, 10**6)))
def test_health_survives_json(losses, dropped, returns):
    """What decides on a return comes back from a checkpoint as it was, to the last bit."""
    health = Health(tuple(losses), dropped, tuple(returns))
    assert Health.from_json(json.loads(json.dumps(health.to_json()))) == health


@given(st.integers(1, 1000), st.integers(0, 50), st.lists(st.integers(0, 1000)))
def test_the_last_good_step_is_before_the_bad_one(first_bad, every, returns):
    """A run goes back before the first bad step: to a step that was vouched for, or to one it has returned to."""
    health = Health(returns=tuple(returns))
    good = health.last_good(first_bad, every)
    assert 0 <= good < first_bad
    older = health.before_good(good, every)
    assert older is None or (0 < older < good and older % (every or 1) == 0 and returns[-4:] == [good] * 4)
    assert good in returns or (good <= max(0, first_bad - 2) and good % (every or 1) == 0)
