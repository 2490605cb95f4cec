"""The last captured state in memory: what a run goes back to without its disk."""

from contextlib import contextmanager

import pytest

from holdfast.adapters.shared.tensor_state.file_parts import unpacked
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.application.checkpointer import Restorer
from holdfast.application.handlers.save_checkpoints import DropMemoryCopy
from holdfast.application.inbox import Inbox
from holdfast.bootstrap.stages.attach.resource_balance import build_memory_tier
from holdfast.configs.sections.state_store import DiskStateStoreSettings
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.checkpoints.tiers import Tier
from holdfast.domain.commands import DropCopy, SaveReason
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.events import CheckpointFailed, CheckpointMoved, CheckpointSaved
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.forwarding.state_store import ForwardingStateStore
from holdfast.ports.testing.snapshots import BytesPart, snapshot_of
from tests.support.loop import Loop


class FaultyStore(ForwardingStateStore):
    """Keeps what a store in memory keeps; refuses to save while ``is_full``, and to load ever."""

    def __init__(self):
        super().__init__(MemoryStateStore(Retention(100)))
        self.is_full = False

    def save(self, snapshot):
        if self.is_full:
            msg = "the disk is full: free some space there"
            raise StateError(msg)
        return super().save(snapshot)

    def load(self, *, at_most=None):
        pytest.fail(f"the store was asked for {at_most}")

    def restore(self, into, *, at_most=None):
        return self.load(at_most=at_most)


def restore_from_memory(loop, step):
    """Restore what the loop holds in memory; return its progress, None if that is no state of ``step`` or before."""
    memory = loop.checkpoints._memory
    return Restorer(loop.store, loop.trainable, loop.bus, loop.group, memory).from_memory(step)


def saved_loop(**options):
    """Return a loop that has saved step 8, and was trained on since."""
    loop = Loop(FaultyStore(), keeps_copy=True, **options)
    loop.checkpoints.save(Progress(8, 256), SaveReason.PERIODIC)
    expected = loop.state
    other = Loop()
    other.run()
    loop.trainable.restore(other.store.load().folder)
    assert loop.state != expected
    return loop, expected


def test_what_was_captured_last_is_restored_from_memory():
    """The state and its progress come back bit for bit, the store is not asked, and so it is a second time."""
    loop, expected = saved_loop()
    for _ in range(2):
        assert restore_from_memory(loop, 8) == Progress(8, 256)
        assert loop.state == expected


@pytest.mark.parametrize("reason", SaveReason)
def test_only_a_save_beside_training_takes_a_copy(reason):
    """A save that is waited for captures without one, and memory does not hold what would change with the next step."""
    loop, _ = saved_loop()
    capture, copied = loop.trainable.capture, []

    def captured(*, copy):
        copied.append(copy)
        return capture(copy=copy)

    loop.trainable.capture = captured
    loop.checkpoints.save(Progress(9, 288), reason)
    assert copied == [reason is SaveReason.PERIODIC]
    in_memory = restore_from_memory(loop, 9)
    assert in_memory == (Progress(9, 288) if reason is SaveReason.PERIODIC else None)


def test_a_later_save_lets_go_of_a_copy_that_could_not_be_saved():
    """Behind a save that was waited for nobody goes back to what is older than it and was never durable."""
    loop, _ = saved_loop()
    loop.store.is_full = True
    loop.checkpoints.save(Progress(9, 288), SaveReason.PERIODIC)
    loop.checkpoints.flush()
    assert loop.published(CheckpointFailed)
    loop.store.is_full = False
    loop.checkpoints.save(Progress(10, 320), SaveReason.FINAL)
    assert restore_from_memory(loop, 10) is None


def test_a_copy_behind_the_step_that_is_wanted_is_left():
    """A roll-back to before the captured step changes nothing here, and neither does one without a copy."""
    loop, _ = saved_loop()
    before = loop.state
    assert restore_from_memory(loop, 7) is None
    assert restore_from_memory(Loop(), 7) is None
    assert loop.state == before


def test_without_room_nothing_stays_in_memory():
    """While memory is nearly full a capture is not held behind its save."""
    loop, _ = saved_loop(is_tight=True)
    assert restore_from_memory(loop, 8) is None
    assert loop.published(CheckpointMoved) == []


def test_a_copy_that_cannot_be_laid_out_is_told(caplog):
    """Without room for its files the copy is left, the reason is logged, and the caller asks the disk."""
    loop, _ = saved_loop()

    @contextmanager
    def refuse(snapshot):
        msg = "the captured state could not be laid out in /dev/shm: free some space there"
        raise StateError(msg)
        yield

    loop.checkpoints._memory._unpack = refuse
    assert restore_from_memory(loop, 8) is None
    assert "free some space" in caplog.text


def test_a_durable_copy_goes_once_memory_is_tight():
    """The loop gives it up when asked to, tells so once, and the next capture is held again when there is room."""
    loop = Loop(save_every=3, keeps_copy=True)

    def tighten(is_tight):
        loop.is_tight = is_tight
        loop.inbox.post(DropCopy())

    loop.at_step(4, lambda: tighten(is_tight=True))
    loop.at_step(5, lambda: tighten(is_tight=False))
    held = []
    for step in (2, 4, 6, 7):
        loop.at_step(step, lambda: held.append(loop.checkpoints._memory.newest))
    loop.run()
    assert loop.published(CheckpointMoved) == [
        CheckpointMoved(3, Tier.MEMORY, Tier.DISK, "memory is nearly full"),
    ]
    assert [snapshot and snapshot.progress.step for snapshot in held] == [None, 3, None, 6]


def test_nothing_stays_in_memory_behind_the_run():
    """A host that goes on to use the model has all of its memory back once the run has ended."""
    loop = Loop(save_every=3, keeps_copy=True)
    loop.run()
    assert restore_from_memory(loop, 8) is None


def test_the_only_copy_of_a_state_is_not_given_up():
    """A capture that could not be saved stays in memory however tight that becomes."""
    loop = Loop(FaultyStore(), keeps_copy=True)
    loop.store.is_full = True
    loop.checkpoints.save(Progress(3, 96), SaveReason.PERIODIC)
    loop.is_tight = True
    loop.checkpoints.drop_memory_copy()
    assert loop.published(CheckpointMoved) == []
    assert restore_from_memory(loop, 3) == Progress(3, 96)


@pytest.mark.parametrize("keeps_copy", [True, False])
def test_a_step_cut_in_two_leaves_the_last_capture(keeps_copy):
    """If the last save failed and an error then tears a step, what was captured is made durable rather than nothing."""
    store = MemoryStateStore(Retention(100))
    full = FaultyStore()
    full.inner, full.load = store, store.load
    loop = Loop(full, save_every=3, keeps_copy=keeps_copy)
    loop.at_step(2, lambda: setattr(full, "is_full", True))
    loop.at_step(4, lambda: setattr(full, "is_full", False))

    def tear(step, _):
        if step == 5:
            msg = "an error interrupted an optimizer step"
            loop.trainable.capture = lambda **_: (_ for _ in ()).throw(StateError(msg))
            raise RuntimeError(msg)

    loop.trainable.before_part = tear
    with pytest.raises(RuntimeError):
        loop.run()
    assert [event.progress.step for event in loop.published(CheckpointFailed)] == [3]
    assert [(info.progress.step, info.reason) for info in store.list()] == [(3, "exception")] * keeps_copy
    assert [event.progress.step for event in loop.published(CheckpointSaved)] == [3] * keeps_copy
    if keeps_copy:
        again, straight = Loop(store), Loop()
        again.run()
        straight.run()
        assert again.state == straight.state


def test_memory_is_looked_at_once_a_second_and_asked_for_once():
    """However often steps end, one command is posted when memory becomes tight, and another after it was free."""
    now, tight, looks, inbox = [0.0], [False], [], Inbox()
    relieve = DropMemoryCopy(lambda: looks.append(now[0]) or tight[0], inbox, clock=lambda: now[0])
    posted = []
    for tenth in range(60):
        now[0], tight[0] = tenth / 10, 10 < tenth < 35 or tenth > 45
        relieve(None)
        posted += [(tenth, command) for command in inbox.drain()]
    assert len(looks) == 5
    assert posted == [(20, DropCopy()), (50, DropCopy())]


@pytest.mark.parametrize(
    ("wanted", "num_ranks", "is_tight", "held"),
    [
        ("auto", 1, False, True),
        ("auto", 1, True, False),
        ("auto", 2, False, False),
        ("on", 1, True, True),
        ("off", 1, False, False),
    ],
)
def test_the_setting_decides_what_is_held(wanted, num_ranks, is_tight, held):
    """Auto holds a copy while there is room and in a process that is alone, on always, and off never."""
    tier = build_memory_tier(DiskStateStoreSettings(memory_tier=wanted), num_ranks, lambda: is_tight)
    snapshot = snapshot_of(1, {"model": b"one", "inner/rng": b"r"})
    tier.hold(snapshot)
    assert (tier.newest is snapshot) == held
    if held:
        with tier.unpacked() as folder:
            assert (folder / "inner/rng").read_bytes() == b"r"
        assert not folder.exists()


def test_memory_is_refused_to_several_processes():
    """What is held is one process's share, so asking for it with several is a configuration that cannot be obeyed."""
    with pytest.raises(ConfigurationError, match="set it to auto"):
        build_memory_tier(DiskStateStoreSettings(memory_tier="on"), 2, lambda: False)


def test_files_without_room_are_a_sentence(tmp_path):
    """A scratch folder that is not there, or is full, is named with what to do."""
    with pytest.raises(StateError, match="could not be unpacked in"), unpacked([BytesPart("a", b"b")], tmp_path / "no"):
        pytest.fail("there was room")
