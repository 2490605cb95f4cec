"""Epochs that become steps before the first step."""

from __future__ import annotations

from contextlib import closing

import pytest

from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.bootstrap.run_folder.shared import SharedRunFolder
from holdfast.bootstrap.wiring.epochs_budget import decide_epochs
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings import TrainSettings
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.progress import Progress
from holdfast.ports.state_store import Snapshot
from tests.support.streams import Plan, stream_of

CORPUS = {"unit": ["some words", "and more of them", "the last ones"]}
GROWN = {"unit": [*(text * 5 for text in CORPUS["unit"])]}
ROWS = 4


def store_at(step, samples):
    store = MemoryStateStore(Retention(3))
    store.save(Snapshot(progress=Progress(step=step, cursor=Cursor(samples)), parts=(), reason="cadence"))
    return store


def decided(home, corpus, *, mode="cache", rows=ROWS, store=None, reports=None, **limits):
    """Return the steps that a start of the run in ``home`` decides on for its ``corpus``, and the stream."""
    budget, epochs = Budget(**limits), limits.get("epochs")
    settings = TrainSettings(
        data={"kind": "python_library", "sequence_length": 8, "epochs": epochs}, optimizer={"batch_size": rows}
    )
    stream = stream_of(corpus, Plan(mode=mode, rows=rows, epochs=epochs))
    with closing(SharedRunFolder(home, SingleProcessGroup())) as folder:
        folder.begin(dump_settings(settings))
        store = store or MemoryStateStore(Retention(3))
        decide_epochs(budget, stream, settings, folder, store, ([] if reports is None else reports).append)
        folder.write()
    return budget.steps, stream


@pytest.mark.parametrize("epochs", [1, 2, 7])
def test_the_steps_are_the_batches_of_all_epochs(tmp_path, epochs):
    """A run has as many steps as its data have batches, of which the last may be smaller."""
    steps, stream = decided(tmp_path, CORPUS, epochs=epochs)
    assert steps == -(-stream.num_rows * epochs // ROWS)


def test_the_same_epochs_keep_their_steps(tmp_path):
    """A resume ends where the run began to, also if batches were left out on the way, and reports nothing."""
    reports = []
    steps, _ = decided(tmp_path, GROWN, epochs=2)
    assert decided(tmp_path, GROWN, epochs=2, store=store_at(3, 9 * ROWS), reports=reports)[0] == steps
    assert reports == []


def test_other_epochs_rows_and_data_count_what_is_left(tmp_path):
    """More epochs, more data or another batch end the run when all rows are read, which is reported."""
    reports = []
    steps, stream = decided(tmp_path, CORPUS, epochs=2)
    store = store_at(steps, 2 * stream.num_rows)
    assert decided(tmp_path, CORPUS, epochs=3, store=store)[0] == steps + -(-stream.num_rows // ROWS)
    assert decided(tmp_path, CORPUS, epochs=5, rows=1, store=store)[0] == steps + 3 * stream.num_rows
    assert decided(tmp_path, CORPUS, epochs=1, store=store)[0] == steps
    again, grown = decided(tmp_path, GROWN, epochs=2, store=store, reports=reports)
    assert again == steps + -(-(2 * grown.num_rows - 2 * stream.num_rows) // ROWS)
    rows = f"{2 * grown.num_rows} rows in steps of {ROWS}"
    assert reports == [f"data.epochs=2 now ends the run at step {again}, not {steps}: {rows}"]


@pytest.mark.parametrize(("limits", "steps"), [({"steps": 5}, 5), ({"tokens": 90}, None), ({"minutes": 2.0}, None)])
def test_another_limit_stands(tmp_path, limits, steps):
    """Where steps, tokens or minutes limit a run, its epochs decide nothing."""
    assert decided(tmp_path, CORPUS, epochs=2, **limits)[0] == steps


def test_streamed_epochs_are_no_length(tmp_path):
    """The batches of a stream cannot be counted, and the error names the ways on."""
    with pytest.raises(ConfigurationError, match=r"data\.epochs=2 alone .* run\.budget\.steps, .* data\.mode=cache"):
        decided(tmp_path, CORPUS, mode="stream", epochs=2)
