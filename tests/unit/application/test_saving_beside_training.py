"""Checkpoints that are written while training goes on."""

import gc
import threading
import weakref

import pytest

from holdfast.adapters.process_group.memory import MemoryProcessGroup
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.commands import SaveCheckpoint, SaveReason, StopRun
from holdfast.domain.errors import StateError
from holdfast.domain.events import CheckpointFailed, CheckpointSaved, CheckpointStarted, StepCompleted
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.forwarding.state_store import ForwardingStateStore
from holdfast.ports.state_store import StatePart
from tests.support.loop import Loop


class SlowStore(ForwardingStateStore):
    """Keeps what ``inner`` keeps, each save once ``may_save`` is set; steps in ``failing`` fail."""

    def __init__(self, *failing):
        super().__init__(MemoryStateStore(Retention(100)))
        self.may_save = threading.Event()
        self.failing = set(failing)
        self.saving = 0
        self.most_at_once = 0

    def save(self, snapshot):
        self.saving += 1
        self.most_at_once = max(self.most_at_once, self.saving)
        try:
            assert self.may_save.wait(timeout=60)
            if snapshot.progress.step in self.failing:
                msg = "the disk is full: free some space there"
                raise StateError(msg)
            return super().save(snapshot)
        finally:
            self.saving -= 1


def steps_of(loop):
    return [info.progress.step for info in loop.store.list()]


def test_training_goes_on_while_a_checkpoint_is_written():
    """Steps complete between the capture and the moment at which it is durable, and the save is told behind them."""
    store = SlowStore()
    loop = Loop(store, save_every=3, saves_beside=True)
    loop.at_step(5, store.may_save.set)
    loop.run()
    story = [
        (type(event).__name__, event.progress.step)
        for event in loop.bus.published
        if isinstance(event, (CheckpointStarted, CheckpointSaved, StepCompleted))
    ]
    started, saved = story.index(("CheckpointStarted", 3)), story.index(("CheckpointSaved", 3))
    assert {("StepCompleted", 4), ("StepCompleted", 5)} <= set(story[started:saved])
    assert steps_of(loop) == [3, 6, 8]


def test_a_checkpoint_holds_the_values_of_its_step():
    """What later steps do to the parameters while it is being written does not reach it."""
    expected = Loop(save_every=0)
    expected.run()
    store = SlowStore()
    loop = Loop(store, save_every=3, saves_beside=True)
    loop.at_step(5, store.may_save.set)
    loop.at_step(5, lambda: loop.inbox.post(StopRun("enough")))
    loop.run()
    del store.inner._stored[5]
    again = Loop(store, save_every=0)
    again.run()
    assert list(again.rows) == [4, 5, 6, 7, 8]
    assert again.state == expected.state


def test_one_save_is_under_way_at_a_time():
    """A save that is due while the last one is being written waits for it; both become durable."""
    store = SlowStore()
    loop = Loop(store, save_every=1, saves_beside=True)
    threading.Timer(0.2, store.may_save.set).start()
    loop.run()
    assert store.most_at_once == 1
    assert steps_of(loop) == list(range(1, 9))


def test_a_periodic_save_that_fails_stops_nothing():
    """It is told, the step does not count as durable, training goes on and the next save is made."""
    store = SlowStore(2, 4)
    store.may_save.set()
    for saves_beside in (True, False):
        loop = Loop(store, save_every=2, saves_beside=saves_beside)
        loop.run()
        failed = loop.published(CheckpointFailed)
        assert [(event.progress.step, event.reason) for event in failed] == [(2, "periodic"), (4, "periodic")]
        assert "free some space" in failed[0].problem
        assert steps_of(loop) == [6, 8]
        store.inner = MemoryStateStore(Retention(100))


def test_a_save_that_somebody_waits_for_raises():
    """The last save of a run is durable when the run ends, or the run ends with the reason why it is not."""
    store = SlowStore(8)
    store.may_save.set()
    loop = Loop(store, save_every=3, saves_beside=True)
    with pytest.raises(StateError, match="free some space"):
        loop.run()
    assert steps_of(loop) == [3, 6]


def test_without_room_for_the_copy_training_waits():
    """Where the copy has no room beside the next step, the save is durable before that step begins."""
    loop = Loop(save_every=2, saves_beside=False)
    loop.run()
    assert loop.story.index("CheckpointSaved") == loop.story.index("CheckpointStarted") + 1
    assert all(event.stall_seconds == event.seconds for event in loop.published(CheckpointSaved))


def test_a_stop_waits_for_the_save_under_way_and_its_own():
    """A run that is asked to stop while a checkpoint is being written ends with both."""
    store = SlowStore()
    loop = Loop(store, save_every=3, saves_beside=True)
    loop.at_step(4, lambda: loop.inbox.post(StopRun("enough")))
    threading.Timer(0.2, store.may_save.set).start()
    loop.run()
    assert steps_of(loop) == [3, 4]
    assert [event.progress.step for event in loop.published(CheckpointSaved)] == [3, 4]


def test_an_error_waits_for_the_save_under_way_and_its_own():
    """A run that fails while a checkpoint is being written keeps it, and its last complete step."""
    store = SlowStore()
    loop = Loop(store, save_every=3, saves_beside=True)

    def fail(step, _):
        if step == 5:
            msg = "planted"
            raise RuntimeError(msg)

    loop.trainable.before_part = fail
    threading.Timer(0.2, store.may_save.set).start()
    with pytest.raises(RuntimeError, match="planted"):
        loop.run()
    assert {info.progress.step: info.reason for info in store.list()} == {3: "periodic", 4: SaveReason.EXCEPTION}


class Held(StatePart):
    """A part that can be watched."""

    def __init__(self, part):
        self.name = part.name
        self._part = part

    def chunks(self):
        return self._part.chunks()


def test_a_copy_is_given_back_once_it_is_written():
    """Nothing holds the captured state when its save has ended, while the next steps need the memory."""
    store, references = SlowStore(), []
    store.may_save.set()
    loop = Loop(store, saves_beside=True)

    def capture(*, copy):
        parts = [Held(part) for part in loop.trainable.inner.capture(copy=copy)]
        references.extend(map(weakref.ref, parts))
        return parts

    loop.trainable.capture = capture
    loop.checkpoints.save(Progress(step=1), SaveReason.PERIODIC)
    loop.checkpoints.flush()
    gc.collect()
    assert [reference() for reference in references] == [None]


@pytest.mark.parametrize("failing", [(), (3,)])
def test_every_rank_is_told_what_became_of_a_save(failing):
    """The ranks of a group publish the same events about checkpoints, in the same order, also of one that failed."""
    groups = MemoryProcessGroup.linked(2)
    stores = SlowStore(*failing), MemoryStateStore(Retention(1))
    stores[0].may_save.set()
    pairs = zip(stores, groups, strict=True)
    loops = [Loop(store, group=group, save_every=3, saves_beside=True) for store, group in pairs]
    threads = [threading.Thread(target=loop.run) for loop in loops]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    told = [
        [(type(event).__name__, event.progress.step) for event in loop.published((CheckpointSaved, CheckpointFailed))]
        for loop in loops
    ]
    assert told[0] == told[1]
    outcomes = dict(map(reversed, told[0]))
    assert outcomes == {step: "CheckpointFailed" if step in failing else "CheckpointSaved" for step in (3, 6, 8)}


def test_whatever_ends_the_loop_the_save_under_way_is_waited_for():
    """An interrupt, which no handler answers, leaves no writer behind: the next run finds the checkpoint."""
    before = set(threading.enumerate())
    store = SlowStore()
    loop = Loop(store, save_every=3, saves_beside=True)

    def interrupt(step, _):
        if step == 5:
            raise KeyboardInterrupt

    loop.trainable.before_part = interrupt
    releasing = threading.Timer(0.2, store.may_save.set)
    releasing.start()
    with pytest.raises(KeyboardInterrupt):
        loop.run()
    releasing.join()
    assert steps_of(loop) == [3]
    assert [event.progress.step for event in loop.published(CheckpointSaved)] == [3]
    assert set(threading.enumerate()) <= before


def test_the_first_rank_keeps_its_save_when_another_fails():
    """A rank that is lost while the first one writes costs the steps since, not the checkpoint."""
    stores = SlowStore(), MemoryStateStore(Retention(1))
    loops = [
        Loop(store, group=group, save_every=every, saves_beside=True, saves_on_failure=False)
        for store, group, every in zip(stores, MemoryProcessGroup.linked(2, timeout_seconds=60), (3, 0), strict=True)
    ]

    def fail(step, _):
        if step == 5:
            msg = "planted"
            raise RuntimeError(msg)

    loops[1].trainable.before_part = fail
    errors = []

    def run(loop):
        try:
            loop.run()
        except Exception as error:  # noqa: BLE001
            errors.append(repr(error))
            loop.group.close()

    threads = [threading.Thread(target=run, args=(loop,)) for loop in loops]
    for thread in threads:
        thread.start()
    threads[1].join(60)
    stores[0].may_save.set()
    threads[0].join(60)
    assert errors[0] == "RuntimeError('planted')"
    assert steps_of(loops[0]) == [3]
    assert [event.progress.step for event in loops[0].published(CheckpointSaved)] == [3]


def test_an_outcome_is_that_of_its_own_save():
    """A step that is saved again after a failure is not settled by the news of the first attempt."""
    store = SlowStore(3)
    store.may_save.set()
    loop = Loop(store, save_every=3, saves_beside=True)
    loop.at_step(3, lambda: loop.inbox.post(SaveCheckpoint()))
    loop.bus.subscribe(CheckpointFailed, lambda _: store.failing.clear())
    loop.run()
    assert steps_of(loop) == [3, 6, 8]
    assert [event.progress.step for event in loop.published(CheckpointFailed)] == [3]
    assert [event.progress.step for event in loop.published(CheckpointSaved)] == [3, 6, 8]
