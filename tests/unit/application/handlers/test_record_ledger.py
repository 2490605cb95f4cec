"""The handler gives the ledger each step of a run, and costs the training thread nearly nothing."""

from __future__ import annotations

import threading
from contextlib import closing

import numpy as np
import pytest

from holdfast.adapters.ledger.memory import MemoryLedger
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.application.handlers.record_ledger import RecordLedger
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.commands import SaveReason
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import DataError, StateError, TrainingError
from holdfast.domain.events import (
    CheckpointSaved,
    CheckpointStarted,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
)
from holdfast.domain.training.step_outcome import Progress, StepOutcome
from holdfast.ports.testing.ledger import ROWS, plain, spans_of
from holdfast.ports.testing.snapshots import snapshot_of


def at(step, samples=None):
    return Progress(step, 40 * step, Cursor(ROWS * step if samples is None else samples))


def taken(step, samples=None, loss=2.0):
    return StepCompleted(at(step, samples), StepOutcome([loss], 1, 40, 1.0, 0.1, 1, 0.01))


def recorder(ledger, **options):
    return closing(RecordLedger(ledger, "run", options.pop("spans", spans_of), {"seed": 5}, **options))


def test_each_step_is_recorded_with_its_documents():
    """The samples of a step are those between the cursors before and after it."""
    ledger = MemoryLedger()
    with recorder(ledger) as handler:
        handler.on_start(RunStarted(at(0)))
        for step in range(1, 8):
            handler.on_step(taken(step))
        handler.on_save(CheckpointSaved(at(7), "/run/checkpoint-7", SaveReason.PERIODIC, 0.5, 0.1))
        handler.on_end(RunFinished(at(7)))
    assert plain(ledger.steps("run")) == [(step, ROWS * (step - 1), ROWS * step, 2.0, 40) for step in range(1, 8)]
    assert plain(ledger.documents_in("run", 4)) == plain(spans_of(12, 16))
    assert [(one.step, one.location) for one in ledger.checkpoints("run")] == [(7, "/run/checkpoint-7")]


def test_a_start_records_the_checkpoints_that_are_stored(tmp_path):
    """One that a killed process saved and did not record is there after the next start, with the time of its save."""
    store = DiskStateStore(tmp_path, Retention(10))
    saved = [store.save(snapshot_of(step, {"model": b"weights"})) for step in (5, 10)]
    ledger = MemoryLedger()
    for _ in range(2):
        with recorder(ledger) as handler:
            handler.on_start(RunStarted(at(10)))
            handler.on_stored(store.list())
    found = [(one.step, one.location, one.time) for one in ledger.checkpoints("run")]
    assert found == [(info.progress.step, info.location, info.saved_at) for info in saved]


def test_a_roll_back_goes_on_with_the_next_samples():
    """Steps after a roll-back are recorded with the samples that the run reads then, not with those of before."""
    ledger = MemoryLedger()
    with recorder(ledger) as handler:
        handler.on_start(RunStarted(at(0)))
        for step in (1, 2, 3):
            handler.on_step(taken(step))
        handler.on_roll_back(RolledBack(at(1, samples=12), 3, "the loss rose"))
        handler.on_step(taken(2, samples=16))
        handler.settle(RunFinished(at(2)))
        assert ledger.steps("run").first_sample.tolist() == [0, 12]
        attempts = [one.attempt for one in ledger.steps_with(int(spans_of(12, 13).document[0]))]
        assert attempts == [1]


def test_a_resume_marks_the_steps_that_are_taken_again():
    """Steps after the checkpoint of a resumed run are not current until they are taken again."""
    ledger = MemoryLedger()
    for begin, end in ((0, 5), (3, 4)):
        with recorder(ledger) as handler:
            handler.on_start(RunStarted(at(begin)))
            for step in range(begin + 1, end + 1):
                handler.on_step(taken(step))
    assert ledger.steps("run").step.tolist() == [1, 2, 3, 4]


def test_a_checkpoint_waits_for_the_steps_before_it():
    """When a checkpoint starts, each step so far is in the ledger, also those that waited to be recorded together."""
    ledger = MemoryLedger()
    with recorder(ledger, interval_seconds=1e9) as handler:
        handler.on_start(RunStarted(at(0)))
        for step in range(1, 6):
            handler.on_step(taken(step))
        handler.settle(CheckpointStarted(at(5), SaveReason.PERIODIC))
        assert len(ledger.steps("run").step) == 5


def test_the_training_thread_waits_for_nothing():
    """A step returns while the thread waits for the spans, and the loss is read in that thread alone."""
    released, threads = threading.Event(), set()

    class Loss:
        def __float__(self):
            threads.add(threading.current_thread())
            return 2.0

    def spans(first, end):
        released.wait(60)
        return spans_of(first, end)

    ledger = MemoryLedger()
    with recorder(ledger, spans=spans, interval_seconds=0) as handler:
        handler.on_start(RunStarted(at(0)))
        for step in range(1, 50):
            handler.on_step(taken(step, loss=Loss()))
        assert len(ledger.steps("run").step) == 0
        released.set()
        handler.settle(RunFinished(at(49)))
    assert len(ledger.steps("run").step) == 49
    assert threading.current_thread() not in threads


def test_a_ledger_that_hangs_holds_up_a_checkpoint_for_its_patience_only():
    """``settle`` raises an error that names the event if the thread does not finish in time."""
    released = threading.Event()
    with recorder(MemoryLedger(), spans=lambda *_: released.wait(60), patience_seconds=0.05) as handler:
        handler.on_start(RunStarted(at(0)))
        handler.on_step(taken(1))
        with pytest.raises(TrainingError, match="the ledger has not answered for 0 s at CheckpointStarted"):
            handler.settle(CheckpointStarted(at(1), SaveReason.PERIODIC))
        released.set()


def test_an_error_is_raised_at_a_later_event():
    """An error of the thread reaches the bus, and later steps are recorded nevertheless."""
    fails = [True]

    def spans(first, end):
        if fails.pop() if fails else False:
            msg = "no order"
            raise StateError(msg)
        return spans_of(first, end)

    def take_and_settle(handler):
        handler.on_step(taken(1))
        handler.settle(CheckpointStarted(at(1), SaveReason.PERIODIC))

    ledger = MemoryLedger()
    with recorder(ledger, spans=spans) as handler:
        handler.on_start(RunStarted(at(0)))
        with pytest.raises(StateError, match="no order"):
            take_and_settle(handler)  # the step raises it already, if the thread is quick
        handler.on_step(taken(2))
        handler.settle(RunFinished(at(2)))
    assert ledger.steps("run").step.tolist() == [2]


def test_a_failed_run_records_its_last_steps():
    """The end of a run records the steps that waited, and a loss that is not finite is stored as it is."""
    ledger = MemoryLedger()
    with recorder(ledger, interval_seconds=1e9) as handler:
        handler.on_start(RunStarted(at(0)))
        handler.on_step(taken(1))
        handler.on_step(taken(2, loss=float("nan")))
        handler.on_end(RunFailed(at(2), DataError("line 3 is no JSON")))
    assert np.isnan(ledger.steps("run").loss).tolist() == [False, True]
