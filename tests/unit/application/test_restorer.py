"""Going on from a checkpoint that is read once."""

from __future__ import annotations

import pytest

from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.commands import SaveReason
from holdfast.domain.errors import StateError
from holdfast.domain.events import CheckpointRejected
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import Loaded, RejectedCheckpoint, open_plainly
from tests.support.loop import Loop


class DamagedStore(MemoryStateStore):
    """Finds out that each checkpoint is damaged, once it has been handed over."""

    damaged = True

    def restore(self, into, *, at_most=None):
        if not self.damaged:
            return super().restore(into, at_most=at_most)
        loaded = self.load(at_most=at_most)
        into(loaded.folder, open_plainly)
        return Loaded(None, None, [RejectedCheckpoint("checkpoint-3", "a bit", "quarantine/checkpoint-3")])


@pytest.fixture
def loop():
    first = Loop(DamagedStore(Retention(3)))
    first.checkpoints.save(Progress(3, 96), SaveReason.FINAL)
    return Loop(first.store)


def test_a_run_does_not_begin_with_damaged_weights(loop):
    """Where all that was read failed verification the run ends with a sentence, and each is told."""
    with pytest.raises(StateError, match=r"checkpoint-3 failed verification .* the same command starts again at"):
        loop.checkpoints.restore_latest()
    assert loop.published(CheckpointRejected) == [
        CheckpointRejected("checkpoint-3", "a bit", "quarantine/checkpoint-3")
    ]


def test_damaged_weights_are_not_saved(loop):
    """What is in memory then is of no step."""
    with pytest.raises(StateError, match="failed verification"):
        loop.checkpoints.restore_latest()
    with pytest.raises(StateError, match="was not saved"):
        loop.checkpoints.save(Progress(4, 128), SaveReason.FINAL)


def test_a_later_restore_that_succeeds_makes_it_whole(loop):
    """Once a checkpoint is restored the state is that of a step, and can be saved again."""
    with pytest.raises(StateError, match="failed verification"):
        loop.checkpoints.restore_latest()
    loop.store.damaged = False
    assert loop.checkpoints.restore_latest() == Progress(3, 96)
    loop.checkpoints.save(Progress(4, 128), SaveReason.FINAL)
    assert [info.progress.step for info in loop.store.list()] == [3, 4]
