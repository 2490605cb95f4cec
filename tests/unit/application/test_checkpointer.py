from dataclasses import replace

import pytest

from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.adapters.state_store.shown_transfer import ShownStateStore
from holdfast.application.checkpointer import Checkpointer
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.commands import SaveReason
from holdfast.domain.data.cursor import Cursor, LanePosition
from holdfast.domain.errors import StateError
from holdfast.domain.events import CheckpointRejected, CheckpointSaved, EvaluationCompleted
from holdfast.domain.phase import Amount
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.testing.snapshots import BytesPart
from tests.support.loop import Loop

PROGRESS = Progress(3, 96, Cursor(12, (LanePosition(1, 2, 3, 4), LanePosition())))


def test_a_new_run_begins_at_the_beginning():
    """With nothing stored there is nothing to restore, and the state stays as it was built."""
    loop = Loop()
    before = loop.state
    assert loop.checkpoints.restore_latest() == Progress()
    assert loop.state == before
    assert loop.bus.published == []


def test_what_is_saved_is_restored():
    """Progress, cursor included, and state come back, and the save is told with its place and reason."""
    saved = Loop()
    saved.run()
    other = Loop()
    other.checkpoints.save(PROGRESS, SaveReason.PREEMPT)
    expected = other.state
    restored = Loop(other.store)
    restored.trainable.restore(saved.store.load().folder)
    assert restored.checkpoints.restore_latest() == PROGRESS
    assert restored.state == expected
    (event,) = other.published(CheckpointSaved)
    assert (event.progress, event.reason) == (PROGRESS, SaveReason.PREEMPT)
    assert event.location == other.store.list()[0].location
    assert event.seconds >= 0


def shown_by(loop):
    """Return a checkpointer over the store of ``loop``, and the list of all that it shows."""
    shown = []
    store = ShownStateStore(loop.store, lambda *phase: shown.append(phase))
    return Checkpointer(store, loop.trainable, loop.bus, loop.group, loop.inbox), shown


def test_the_bytes_of_a_save_and_of_a_restore_are_shown():
    """Training that waits sees how much of the last size is written; who resumes sees how much is read, and its end."""
    loop = Loop()
    checkpoints, shown = shown_by(loop)
    checkpoints.save(replace(PROGRESS, step=2), SaveReason.PERIODIC)
    checkpoints.flush()
    assert shown == []
    size = loop.store.list()[0].num_bytes
    checkpoints.save(PROGRESS, SaveReason.FINAL)
    assert shown[0] == ("saving checkpoint-3", Amount(0, size))
    assert shown[-1] == ("saving checkpoint-3", Amount(size, size))
    again, shown = shown_by(Loop(loop.store))
    again.restore_latest()
    names = {phase for phase, *_ in shown[:-1]}
    (name,) = names
    assert name.startswith("loading ")
    amounts = [amount.done for _, amount in shown[:-1]]
    assert amounts == sorted(amounts)
    assert 0 == amounts[0] < amounts[-1] <= shown[0][1].total
    assert shown[-1] == ("",)


def test_nothing_is_saved_twice():
    """A step that is durable, in this process or an earlier one, and a run without a step are not written."""
    loop = Loop()
    loop.checkpoints.save(Progress(), SaveReason.FINAL)
    assert loop.store.list() == []
    for _ in range(2):
        loop.checkpoints.save(PROGRESS, SaveReason.PERIODIC)
    again = Loop(loop.store)
    again.checkpoints.restore_latest()
    again.checkpoints.save(PROGRESS, SaveReason.FINAL)
    assert [info.reason for info in loop.store.list()] == [SaveReason.PERIODIC]
    assert again.bus.published == []


def test_a_save_that_failed_is_tried_again():
    """A step counts as durable only once the store said so."""
    loop = Loop()
    capture, loop.trainable.capture = loop.trainable.capture, lambda **_: (_ for _ in ()).throw(StateError("no room"))
    with pytest.raises(StateError):
        loop.checkpoints.save(PROGRESS, SaveReason.PERIODIC)
    loop.trainable.capture = capture
    loop.checkpoints.save(PROGRESS, SaveReason.EXCEPTION)
    assert [info.progress for info in loop.store.list()] == [PROGRESS]


def test_a_checkpoint_tells_the_evaluation_of_its_step():
    """The loss of an evaluation at the very step is kept with the checkpoint; an older one is not."""
    loop = Loop(save_every=2, evaluate_every=4)
    loop.run()
    measured = {event.progress.step: event.evaluation.loss for event in loop.published(EvaluationCompleted)}
    assert {4, 8} <= measured.keys()
    assert {info.progress.step: info.evaluation_loss for info in loop.store.list()} == {
        step: measured.get(step) for step in (2, 4, 6, 8)
    }


def test_a_loss_that_is_no_number_counts_as_none():
    """An evaluation that overflowed neither hinders a save nor makes its checkpoint the best."""
    loop = Loop()
    loop.checkpoints.save(PROGRESS, SaveReason.PERIODIC, evaluation_loss=float("nan"))
    assert [info.evaluation_loss for info in loop.store.list()] == [None]


def test_a_damaged_checkpoint_is_told_and_the_one_before_it_used(tmp_path):
    """Each checkpoint that fails verification is published, and training goes on from the newest good one."""
    store = DiskStateStore(tmp_path, Retention(10))
    loop = Loop(store, save_every=2)
    loop.run()
    for step in (6, 8):
        (tmp_path / "checkpoints" / f"checkpoint-{step}" / "bigram.npy").write_bytes(b"damaged")
    again = Loop(DiskStateStore(tmp_path, Retention(10)), save_every=2)
    again.run()
    assert again.story[:3] == ["CheckpointRejected", "CheckpointRejected", "RunStarted"]
    assert [event.name for event in again.published(CheckpointRejected)] == ["checkpoint-8", "checkpoint-6"]
    assert list(again.rows) == [5, 6, 7, 8]
    assert again.state == loop.state


def test_the_tokenizer_s_files_do_not_hinder_a_restore(tmp_path):
    """Parts beside the trainable lie in each checkpoint and are left alone when it is restored."""
    note = BytesPart("note.txt", b"kept")
    loop = Loop(DiskStateStore(tmp_path, Retention(1)))
    checkpoints = Checkpointer(loop.store, loop.trainable, loop.bus, loop.group, loop.inbox, parts=[note])
    checkpoints.save(PROGRESS, SaveReason.FINAL)
    assert Loop(loop.store).checkpoints.restore_latest() == PROGRESS
    assert (loop.store.load().folder / "note.txt").read_text() == "kept"
