"""A run whose ranks hold a part of the state each saves them together."""

import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.adapters.model_factory.memory import MemoryModelFactory
from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.adapters.process_group.memory import MemoryProcessGroup
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.application.handlers.save_checkpoints import LeaveShareOnFailure
from holdfast.bootstrap.verification.faults import FaultyStateStore, FaultyTrainable, Hooks
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from holdfast.domain.events import CheckpointFailed, CheckpointMoved, CheckpointSaved, RunFailed, RunStarted
from holdfast.ports.forwarding.optimizer import ForwardingTrainable
from holdfast.ports.state_store import StatePart
from holdfast.ports.testing.optimizer import files_of
from holdfast.ports.testing.snapshots import BytesPart, FailingPart
from holdfast.ports.testing.state_store import EndToEnd
from tests.support.loop import Loop

RANKS = 2
SLICES = [f"slices/{rank}" for rank in range(RANKS)]


@pytest.fixture
def tmp_path():
    memory = Path("/dev/shm")  # on which syncing costs nothing
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


class Half(ForwardingTrainable):
    """Captures half of the state of ``inner``, and on the first rank also the file that joins the halves."""

    is_sharded = True

    def __init__(self, inner, rank):
        super().__init__(inner)
        self.rank = rank

    def capture(self, *, copy=True):
        (whole,) = super().capture(copy=copy)
        data = b"".join(whole.chunks())
        middle = len(data) // 2
        own = BytesPart(SLICES[self.rank], (data[:middle], data[middle:])[self.rank])
        return (own, EndToEnd(whole.name, SLICES)) if self.rank == 0 else (own,)


def sharded_loops(store_of, *, save_every=3, timeout_seconds=100, wrap=lambda trainable: trainable):
    """Return the loops of two ranks of which each captures half of the state; the first one asks for saves."""
    groups = MemoryProcessGroup.linked(RANKS, timeout_seconds=timeout_seconds)
    model = MemoryModelFactory()
    return [
        Loop(
            store_of(),
            group=group,
            inner=wrap(
                Half(MemoryOptimizer().prepare(model.build(vocabulary_size=257, end_of_text=256, seed=1)), group.rank)
            ),
            saves_beside=True,
            saves_on_failure=False,
            save_every=every,
        )
        for group, every in zip(groups, (save_every, 0), strict=True)
    ]


def whole_of(loop):
    """Return the state of ``loop``, which is the same on each rank, as one rank that holds all of it captures it."""
    trainable = loop.trainable
    while isinstance(trainable, ForwardingTrainable):
        trainable = trainable.inner
    return files_of(trainable.capture())


def run_together(loops):
    """Run them, each in a thread; return what each raised."""
    errors = [None] * len(loops)

    def run(rank):
        try:
            loops[rank].run()
        except BaseException as error:  # noqa: BLE001
            errors[rank] = error
            loops[rank].group.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(loops))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return errors


def told(loop):
    events = loop.published((CheckpointSaved, CheckpointFailed))
    return [(type(event).__name__, event.progress.step) for event in events]


@pytest.mark.parametrize(
    ("wrap", "wrap_store"),
    [
        (lambda trainable: trainable, lambda store: store),
        (lambda trainable: FaultyTrainable(trainable, Hooks()), lambda store: FaultyStateStore(store, Hooks())),
    ],
    ids=["as it is", "in a drill"],
)
def test_each_rank_writes_its_share(tmp_path, wrap, wrap_store):
    """The checkpoints hold what all ranks captured, every rank is told of them, and a run goes on from them."""
    loops = sharded_loops(lambda: wrap_store(DiskStateStore(tmp_path, Retention(9))), wrap=wrap)
    assert run_together(loops) == [None, None]
    assert told(loops[0]) == told(loops[1]) == [("CheckpointSaved", step) for step in (3, 6, 8)]
    again = Loop(DiskStateStore(tmp_path, Retention(9)))
    assert again.checkpoints.restore_latest().step == 8
    assert again.state == whole_of(loops[0])


@pytest.mark.parametrize("failing", range(RANKS))
def test_one_rank_s_failure_is_everybody_s(tmp_path, failing):
    """A save in which one rank fails is told as failed on each, training goes on and the next save is made."""
    loops = sharded_loops(lambda: DiskStateStore(tmp_path, Retention(9)))
    capture, calls = loops[failing].trainable.capture, []

    def fail_once(**options):
        calls.append(1)
        parts = capture(**options)
        return (*parts, FailingPart(OSError(28, "No space left on device"), "late")) if len(calls) == 1 else parts

    loops[failing].trainable.capture = fail_once
    assert run_together(loops) == [None, None]
    expected = [("CheckpointFailed", 3), ("CheckpointSaved", 6), ("CheckpointSaved", 8)]
    assert told(loops[0]) == told(loops[1]) == expected
    assert "no space left" in loops[1].published(CheckpointFailed)[0].problem


def test_an_error_of_one_rank_costs_no_step(tmp_path):
    """Ranks that end in step 5 because one fails leave their shares of step 4, and the next start continues there."""

    def fail(step, _):
        if step == 5:
            raise ValueError(step)

    loops = sharded_loops(lambda: DiskStateStore(tmp_path, Retention(9)))
    for loop in loops:
        loop.bus.subscribe(RunFailed, LeaveShareOnFailure(loop.checkpoints))
        loop.trainable.before_part = fail  # on the other rank in place of the sum of gradients, which it waits for
    assert [type(error) for error in run_together(loops)] == [ValueError, ValueError]
    assert [info.progress.step for info in DiskStateStore(tmp_path, Retention(9)).list()] == [3]
    again = sharded_loops(lambda: DiskStateStore(tmp_path, Retention(9)))
    assert run_together(again) == [None, None]
    assert [event.step for event in again[0].published(CheckpointMoved)] == [4]
    assert again[0].published(RunStarted)[0].progress.step == again[1].published(RunStarted)[0].progress.step == 4
    undisturbed = sharded_loops(lambda: DiskStateStore(tmp_path / "undisturbed", Retention(9)))
    assert run_together(undisturbed) == [None, None]
    assert whole_of(again[0]) == whole_of(undisturbed[0])


@pytest.mark.slow  # ten seconds of patience
def test_a_rank_that_is_gone_ends_the_other_in_time(tmp_path):
    """A rank that vanishes while a checkpoint is written costs that one alone, and the other ends by its patience."""
    loops = sharded_loops(lambda: DiskStateStore(tmp_path, Retention(9)), timeout_seconds=20)
    contribute, calls = loops[1].store.contribute, []

    def vanish_at_the_second(snapshot):
        calls.append(1)
        if len(calls) == 1:
            contribute(snapshot)

    loops[1].store.contribute = vanish_at_the_second

    def fail(step, _):
        if step == 7:
            raise KeyboardInterrupt

    loops[1].trainable.before_part = fail
    started = time.monotonic()
    errors = run_together(loops)
    assert time.monotonic() - started < 60
    assert [type(error).__name__ for error in errors] == ["TrainingError", "KeyboardInterrupt"]
    assert told(loops[0]) == [("CheckpointSaved", 3), ("CheckpointFailed", 6)]
    assert [info.progress.step for info in DiskStateStore(tmp_path, Retention(9)).list()] == [3]


def test_a_store_that_cannot_put_shares_together_is_refused_at_the_start():
    """Nobody trains for hours towards a save that cannot be."""
    loops = sharded_loops(lambda: MemoryStateStore(Retention(1)))
    errors = run_together(loops)
    assert [type(error) for error in errors] == [StateError] * RANKS
    assert all(isinstance(part, StatePart) for part in loops[1].trainable.capture())
