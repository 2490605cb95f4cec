"""Minutes that become steps before the first step."""

from __future__ import annotations

import time
from contextlib import closing

import numpy as np
import pytest

from holdfast.adapters.model_factory.memory import MemoryModelFactory
from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.application.handlers.adapt_micro_batch import AdaptMicroBatch
from holdfast.application.inbox import Inbox
from holdfast.application.training.micro_batch_search import full_rows
from holdfast.bootstrap.run_folder.shared import SharedRunFolder
from holdfast.bootstrap.stages.build.built import Built
from holdfast.bootstrap.stages.fit.run_length import MinutesBudget
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings import TrainSettings
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import OutOfMemory, RestartNeeded
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.micro_batch import MicroBatchPolicy, MicroBatchState
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import Snapshot
from holdfast.ports.testing.optimizer import files_of

ROWS = 8
HOUR = 3600.0


class SecondOfTwo(SingleProcessGroup):
    """A rank of two, of which the first has decided nothing yet."""

    rank = 1
    size = 2

    def gather(self, text):
        return ["", text]


class Start:
    """A start of a run in ``home`` whose memory has room for ``max_rows`` rows, and what it reports and remembers."""

    def __init__(self, home, *, max_rows=None, group=None, evaluation_rows=4):
        model = MemoryModelFactory().build(vocabulary_size=5, end_of_text=4, seed=0)
        self.trainable = MemoryOptimizer(max_rows=max_rows).prepare(model)
        self.settings = TrainSettings(
            data={"kind": "python_library", "sequence_length": 16},
            optimizer={"batch_size": ROWS},
            evaluation={"batch_size": evaluation_rows, "max_tokens": 64},
        )
        self.home, self.group = home, group or SingleProcessGroup()
        self.reports, self.kept, self.inbox = [], [], Inbox()

    def decided(self, store=None, *, rows=ROWS, began=0.0, **limits):
        """Return the steps and the rows that a start which began ``began`` seconds ago decides on."""
        adapt = AdaptMicroBatch(MicroBatchPolicy(ROWS, ROWS), MicroBatchState(rows), self.inbox, self.kept.append)
        parts = Built(self.settings, {}, self.group, None, self.trainable)
        budget = Budget(**limits)
        with closing(SharedRunFolder(self.home, self.group)) as folder:
            if self.group.rank == 0:
                folder.begin(dump_settings(self.settings))
            started = time.monotonic() - began
            minutes = MinutesBudget(parts, folder, adapt, started, self.reports.append, lambda *_: None)
            budget, rows = minutes.decided(budget, rows, store or MemoryStateStore(Retention(3)))
            folder.write()
        return budget.steps, rows


def store_at(step):
    store = MemoryStateStore(Retention(3))
    store.save(Snapshot(progress=Progress(step=step), parts=(), reason="cadence"))
    return store


def test_a_budget_without_minutes_is_not_measured(tmp_path):
    """Other limits stay as they are, and no step is tried, which would not fit."""
    assert Start(tmp_path, max_rows=0).decided(steps=5) == (5, ROWS)


def test_the_steps_fit_into_the_minutes(tmp_path):
    """Steps follow from the time that is left, one is always taken, and the model has learned nothing."""
    start = Start(tmp_path / "early")
    before = files_of(start.trainable.capture())
    steps, rows = start.decided(minutes=1.0)
    assert rows == ROWS
    assert steps > 10
    assert files_of(start.trainable.capture()) == before
    assert Start(tmp_path / "late").decided(minutes=1.0, began=HOUR) == (1, ROWS)
    assert Start(tmp_path / "both").decided(minutes=1.0, steps=7) == (7, ROWS)


def test_the_same_minutes_keep_their_steps_and_others_begin_again(tmp_path):
    """A resume with the same minutes ends where the run began to; other minutes count from the start that has them."""
    steps, _ = Start(tmp_path).decided(minutes=1.0)
    assert Start(tmp_path).decided(store_at(80), minutes=1.0, began=HOUR) == (steps, ROWS)
    assert Start(tmp_path).decided(store_at(80), minutes=2.0, began=HOUR) == (81, ROWS)
    assert Start(tmp_path).decided(store_at(90), minutes=2.0) == (81, ROWS)
    assert Start(tmp_path).decided(store_at(90), minutes=0.5)[0] > 90


def test_a_micro_batch_that_does_not_fit_is_reduced(tmp_path):
    """A run in minutes begins with the rows that fit, remembers and reports them, and asks the loop for nothing."""
    start = Start(tmp_path, max_rows=3)
    assert start.decided(minutes=1.0, began=HOUR) == (1, 2)
    assert start.kept[-1] == MicroBatchState(2, {8: 1, 4: 1})
    assert start.reports[-1] == "micro-batches of 2, not 4: more did not fit into memory when a step was tried"
    assert not start.inbox


def test_a_row_that_does_not_fit_ends_the_start(tmp_path):
    """If one row is too much, the error names the remedies, as in a step."""
    with pytest.raises(OutOfMemory, match=r"micro-batches of 1 rows: .* recompute activations"):
        Start(tmp_path, max_rows=0).decided(minutes=1.0)


def test_ranks_start_again_with_fewer_rows(tmp_path):
    """The other ranks wait in the middle of the trial, so the smaller size is for new processes."""
    start = Start(tmp_path, max_rows=2, group=SecondOfTwo())
    with pytest.raises(RestartNeeded, match=r"memory of rank 1 in micro-batches of 4 rows .* run the same command"):
        start.decided(minutes=1.0, rows=4)
    assert start.kept[-1].rows == 2


def test_an_evaluation_is_tried_in_rows_that_fit(tmp_path):
    """Held-out rows that do not fit together are halved, as an evaluation does, and the micro-batch stays."""
    start = Start(tmp_path, max_rows=ROWS, evaluation_rows=64)
    assert start.decided(minutes=1.0, began=HOUR) == (1, ROWS)
    assert start.kept == []


def test_a_full_row_is_one_document():
    """The batch of a trial has rows of one document each, as long as a row."""
    batch = full_rows(3, 8)
    assert batch.num_rows == 3
    assert batch.num_tokens == 24
    assert np.array_equal(batch.row_lengths, [8, 8, 8])
