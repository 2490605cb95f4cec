"""The command that takes a run back to an older checkpoint."""

import threading
from contextlib import closing

import pytest

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.monitor.memory import MemoryMonitor
from holdfast.adapters.process_group.memory import MemoryProcessGroup
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.application.handlers.monitor_thread import MonitorThread
from holdfast.application.handlers.record_metrics import RecordMetrics
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.commands import Evaluate, RollBack, SaveCheckpoint
from holdfast.domain.errors import StateError, TrainingError
from holdfast.domain.events import (
    CheckpointRejected,
    HandlerFailed,
    RollBackSkipped,
    RolledBack,
    RunFailed,
    RunStarted,
    StepCompleted,
)
from holdfast.domain.training.budget import Budget
from tests.support.loop import Loop
from tests.support.streams import MODES, Plan

STEPS = 12


def loop_of(store=None, *, mode="cache", prefetch=0, save_every=3, steps=STEPS, **settings):
    more = {} if store is None else {"store": store}
    plan = Plan(mode, prefetch=prefetch)
    return Loop(plan=plan, save_every=save_every, budget=Budget(steps=steps), **more, **settings)


def once_at(loop, step, *commands):
    """Post ``commands`` the first time that ``step`` is complete."""
    waiting = [*commands]

    def act():
        while waiting:
            loop.inbox.post(waiting.pop(0))

    loop.at_step(step, act)


def steps_of(loop):
    return [event.progress.step for event in loop.published(StepCompleted)]


def stored(loop):
    return [info.progress.step for info in loop.store.list()]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prefetch", [0, 4])
def test_the_same_batches_again_end_as_if_nothing_had_happened(mode, prefetch):
    """A run that goes back and takes the same batches again ends in the very state of one that did not."""
    calm, loop = loop_of(mode=mode), loop_of(mode=mode, prefetch=prefetch)
    once_at(loop, 8, RollBack(7, "to see"))
    assert loop.run() == calm.run()
    assert steps_of(loop) == [*range(1, 9), *range(7, STEPS + 1)]
    assert (loop.state, loop.rows) == (calm.state, calm.rows)
    (event,) = loop.published(RolledBack)
    assert (event.progress.step, event.from_step, event.reason) == (6, 8, "to see")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prefetch", [0, 4])
@pytest.mark.parametrize("skip", [0, 2])
def test_a_return_goes_on_behind_the_batches_that_were_read(mode, prefetch, skip):
    """The steps are those behind the checkpoint, the batches those behind the last one and those to be skipped."""
    calm, loop = loop_of(mode=mode, steps=STEPS + 4), loop_of(mode=mode, prefetch=prefetch)
    calm.run()
    once_at(loop, 8, RollBack(7, "to see", skip=skip))
    progress = loop.run()
    assert progress.health.returns == (6,)
    expected = {step: calm.rows[step if step <= 6 else step + 2 + skip] for step in range(1, STEPS + 1)}
    assert loop.rows == expected
    assert progress.cursor.samples == calm.plan.rows * (STEPS + 2 + skip)


def test_a_return_begins_with_the_parameters_of_the_checkpoint():
    """Behind a return model and optimizer are, to the bit, what they were when the checkpoint was made."""
    loop = loop_of()
    once_at(loop, 8, RollBack(6, "to see", skip=0))
    seen = []
    loop.at_step(6, lambda: seen.append(loop.state))
    loop.at_step(8, lambda: seen.append(loop.state))
    loop.bus.subscribe(RolledBack, lambda _: seen.append(loop.state))
    loop.run()
    assert seen[0] == seen[2] != seen[1]


def test_a_return_prefers_the_copy_in_memory(monkeypatch):
    """A copy that is old enough is restored without asking the store, to the same end; a later one is given up."""
    ends = []
    for step in (7, 5):
        loops = [loop_of(), loop_of(keeps_copy=True)]
        for loop in loops:
            once_at(loop, 8, RollBack(step, "to see", skip=1))
            loop.run()
        assert loops[0].state == loops[1].state
        ends.append([event.progress.step for loop in loops for event in loop.published(RolledBack)])
    assert ends == [[6, 6], [3, 3]]
    loop = loop_of(keeps_copy=True)
    once_at(loop, 8, RollBack(7, "to see", skip=1))
    load = loop.store.load
    monkeypatch.setattr(loop.store, "load", lambda *, at_most=None: load() if at_most is None else pytest.fail("asked"))
    assert loop.run().health.returns == (6,)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("skip", [0, 3])
def test_a_run_that_is_killed_behind_a_return_ends_alike(skip, at_once):
    """Killed right behind a return, or later, a run that decides the same again ends in the same state."""
    whole = loop_of()
    once_at(whole, 8, RollBack(7, "to see", skip=skip))
    whole.run()
    first = loop_of()
    once_at(first, 8, RollBack(7, "to see", skip=skip))

    def vanish(step, _):
        if first.published(RolledBack) and step == (7 if at_once else 11):
            raise KeyboardInterrupt

    first.trainable.before_part = vanish
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = loop_of(first.store)
    once_at(second, 8, RollBack(7, "to see", skip=skip)) if at_once else None
    second.run()
    assert second.published(RunStarted)[0].progress.health.returns == (() if at_once else (6,))
    assert second.state == whole.state
    assert [info.progress for info in second.store.list()] == [info.progress for info in whole.store.list()]


def test_checkpoints_behind_a_return_are_superseded(tmp_path):
    """What the run goes back from is set aside, not deleted, and its steps are saved anew."""
    loop = loop_of(DiskStateStore(tmp_path, Retention(100)), save_every=2)
    once_at(loop, 9, RollBack(5, "to see", skip=0))
    loop.run()
    assert sorted(path.name for path in (tmp_path / "superseded").iterdir()) == ["checkpoint-6", "checkpoint-8"]
    assert [len(info.progress.health.returns) for info in loop.store.list()] == [0, 0, 1, 1, 1, 1]
    assert stored(loop) == [2, 4, 6, 8, 10, 12]


def test_each_figure_stands_once_behind_a_return():
    """The figures of steps that were taken back are forgotten, and those of the new ones recorded."""
    monitor, loop = MemoryMonitor(), loop_of(evaluate_every=3)
    with closing(RecordMetrics([MonitorThread("memory", monitor)], loop.trainable)) as recorder:
        for kind in (RunStarted, RolledBack):
            loop.bus.subscribe(kind, recorder.on_start)
        loop.bus.subscribe(StepCompleted, recorder.on_step)
        once_at(loop, 8, RollBack(7, "to see", skip=0))
        loop.run()
    assert [step for step, metrics in monitor.records if "loss" in metrics] == list(range(1, STEPS + 1))


def test_what_was_asked_of_steps_that_are_taken_back_is_dropped():
    """An evaluation and a save that wait behind a return would be of a step that is no more."""
    loop = loop_of(steps=8)
    once_at(loop, 7, RollBack(6, "to see"), Evaluate(), SaveCheckpoint())
    loop.run()
    assert loop.story.count("EvaluationCompleted") == 0
    assert stored(loop) == [3, 6, 8]


@pytest.mark.parametrize("step", [6, 7])
def test_a_return_that_another_one_has_made_is_not_made_twice(step):
    """Two answers to one trouble take the run back once, be there a checkpoint of the very step or an older one."""
    loop = loop_of()
    once_at(loop, 8, RollBack(step, "first", skip=0), RollBack(step, "second", skip=0))
    loop.run()
    assert [event.reason for event in loop.published(RolledBack)] == ["first"]


@pytest.mark.parametrize("limit", [0, 2])
def test_the_limit_of_returns_ends_the_run(limit):
    """A run that has gone back as often as it may ends with an error that says why and how often."""
    loop = loop_of()
    loop.at_step(8, lambda: loop.inbox.post(RollBack(7, "the loss rose", skip=0, limit=limit)))
    with pytest.raises(TrainingError, match=f"the loss rose, after {limit} roll-backs"):
        loop.run()
    assert len(loop.published(RolledBack)) == limit
    assert loop.published(RunFailed)[0].progress.step == 8
    again = loop_of(loop.store)
    again.at_step(9, lambda: again.inbox.post(RollBack(8, "the loss rose", skip=0, limit=limit)))
    with pytest.raises(TrainingError, match=f"after {limit} roll-backs"):
        again.run()
    assert not again.published(RolledBack)


def test_without_an_older_checkpoint_a_return_is_an_error_or_is_skipped():
    """A run that has nothing to go back to ends, or, if the return is optional, goes on as if not asked."""
    calm, loop = loop_of(), loop_of()
    calm.run()
    once_at(loop, 5, RollBack(2, "the loss rose", skip=0, optional=True))
    loop.run()
    assert loop.state == calm.state
    assert [event.progress.step for event in loop.published(RollBackSkipped)] == [5]
    other = loop_of()
    once_at(other, 5, RollBack(2, "the loss rose", skip=0))
    with pytest.raises(TrainingError, match="no checkpoint of step 2 or before"):
        other.run()


def test_a_return_that_is_skipped_gives_up_no_copy(monkeypatch):
    """Where a run has nothing old enough to go back to, the copy in memory still serves the next return."""
    loop = loop_of(keeps_copy=True)
    once_at(loop, 5, RollBack(2, "to see", skip=0, optional=True), RollBack(4, "to see", skip=0))
    load = loop.store.load

    def ask(*, at_most=None):
        return pytest.fail("asked") if at_most == 4 else load(at_most=at_most)

    monkeypatch.setattr(loop.store, "load", ask)
    assert loop.run().health.returns == (3,)


def test_a_damaged_checkpoint_is_not_gone_back_to(tmp_path):
    """If the newest checkpoint that is old enough does not verify, it is told, and the one before it is used."""
    loop = loop_of(DiskStateStore(tmp_path, Retention(100)))
    once_at(loop, 8, RollBack(7, "to see", skip=0))
    damaged = tmp_path / "checkpoints" / "checkpoint-6" / "bigram.npy"
    loop.at_step(7, lambda: damaged.write_bytes(b"damaged") if damaged.exists() else None)
    loop.run()
    assert [event.progress.step for event in loop.published(RolledBack)] == [3]
    assert [event.name for event in loop.published(CheckpointRejected)] == ["checkpoint-6"]


def test_a_return_waits_for_the_save_under_way():
    """A checkpoint that is being written beside training is durable before the run looks for one to go back to."""
    loop = loop_of(saves_beside=True)
    once_at(loop, 6, SaveCheckpoint(), RollBack(6, "to see", skip=0))
    loop.run()
    assert [event.progress.step for event in loop.published(RolledBack)] == [6]


def test_a_return_that_fails_half_way_is_not_saved():
    """An error within a return leaves the checkpoints that are there, and none of a state that is of no step."""
    loop = loop_of()
    once_at(loop, 8, RollBack(7, "to see", skip=0))
    restore, loop.trainable.restore = loop.trainable.restore, lambda *_, **__: (_ for _ in ()).throw(StateError("no"))
    with pytest.raises(StateError, match="no"):
        loop.run()
    loop.trainable.restore = restore
    assert stored(loop) == [3, 6]
    assert "was interrupted" in str(loop.published(HandlerFailed)[0].error)
    assert loop_of(loop.store).run().step == STEPS


def test_data_that_fail_behind_a_return_save_no_wrong_step():
    """An error while batches are skipped leaves no checkpoint that mixes the old step with the new parameters."""
    texts = [f"{number} is a number, and {number + 1} comes after it." for number in range(12)]
    source = MemoryDataSource({"all": [*texts[:9], 7, *texts[10:]]})
    loop = loop_of(mode="stream", source=source, save_every=2)
    once_at(loop, 5, RollBack(3, "to see", skip=100))
    with pytest.raises(TrainingError):
        loop.run()
    assert stored(loop) == [2]


def test_all_ranks_go_back_together():
    """Each rank restores the same checkpoint, skips as many batches, and ends in the same state."""
    store = MemoryStateStore(Retention(100))
    loops = [loop_of(store, group=group) for group in MemoryProcessGroup.linked(2)]
    once_at(loops[0], 8, RollBack(7, "to see", skip=2))
    threads = [threading.Thread(target=loop.run) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [event.progress.health.returns for loop in loops for event in loop.published(RolledBack)] == [(6,), (6,)]
    assert loops[0].state == loops[1].state
    assert loops[0].rows == loops[1].rows
    assert steps_of(loops[1])[-1] == STEPS
