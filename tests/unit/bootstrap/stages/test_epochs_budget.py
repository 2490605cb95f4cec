"""Epochs that become steps before the first step."""

from __future__ import annotations

import json
from contextlib import closing
from random import Random

import pytest

from holdfast.adapters.process_group.single import SingleProcessGroup
from holdfast.adapters.state_store.memory import MemoryStateStore
from holdfast.bootstrap.run_folder.shared import SharedRunFolder
from holdfast.bootstrap.stages.fit.run_length import decide_epochs
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings import TrainSettings
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.events import RolledBack, RunStarted
from holdfast.domain.training.budget import Budget
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import Snapshot
from tests.support.streams import Plan, stream_of

CORPUS = {"unit": ["some words", "and more of them", "the last ones"]}
GROWN = {"unit": [*(text * 5 for text in CORPUS["unit"])]}
ROWS = 4


def store_at(step, samples):
    store = MemoryStateStore(Retention(3))
    store.save(Snapshot(progress=Progress(step=step, cursor=Cursor(samples)), parts=(), reason="cadence"))
    return store


def decided(home, corpus, *, mode="cache", rows=ROWS, store=None, reports=None, then=(), **limits):
    """Return the steps that a start of the run in ``home`` decides on for its ``corpus``, and the stream.

    ``then`` are the events of the start that follow.
    """
    budget, epochs = Budget(**limits), limits.get("epochs")
    settings = TrainSettings(
        data={"kind": "python_library", "sequence_length": 8, "epochs": epochs}, optimizer={"batch_size": rows}
    )
    stream = stream_of(corpus, Plan(mode=mode, rows=rows, epochs=epochs))
    with closing(SharedRunFolder(home, SingleProcessGroup())) as folder:
        folder.begin(dump_settings(settings))
        store = store or MemoryStateStore(Retention(3))
        report = [].append if reports is None else reports.append
        budget, handlers = decide_epochs(budget, stream, settings, folder, store, report)
        folder.write()
        for event in then:
            dict(handlers)[type(event)](event)
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
    assert decided(tmp_path, CORPUS, epochs=1, store=store, reports=reports)[0] == steps
    assert reports.pop().endswith(
        f"more than the {stream.num_rows} of data.epochs=1: it ends at step {steps}, where it is"
    )
    assert decided(tmp_path, CORPUS, epochs=2, store=store)[0] == steps
    again, grown = decided(tmp_path, GROWN, epochs=2, store=store, reports=reports)
    assert again == steps + -(-(2 * grown.num_rows - 2 * stream.num_rows) // ROWS)
    rows = f"{2 * grown.num_rows} rows in steps of {ROWS}"
    assert reports == [f"data.epochs=2 now ends the run at step {again}, not {steps}: {rows}"]


def at(step, samples):
    return Progress(step=step, cursor=Cursor(samples))


def is_whole(steps, stream, where, rows):
    """Return whether ``steps`` end just as all rows are read, in steps of ``rows`` from ``where`` on."""
    return steps == where[0] + -(-(stream.num_rows - where[1]) // rows)


@pytest.mark.parametrize("seed", range(6))
def test_every_return_with_any_rows_reads_the_rest(tmp_path, seed):
    """After any changes of the batch, returns, kills and fall-backs to an older checkpoint, all rows are read."""
    random, saved = Random(seed), [(0, 0)]
    for _ in range(12):
        rows, newest = random.choice([1, 2, 4, 8]), saved[-1]
        if random.random() < 0.3:
            newest = random.choice(saved)
            saved = saved[: saved.index(newest) + 1]
        restored = random.choice(saved) if random.random() < 0.3 else newest
        then = [RunStarted(at(*restored))]
        steps, stream = decided(tmp_path, GROWN, epochs=1, rows=rows, store=store_at(*newest), then=then)
        saved = saved[: saved.index(restored) + 1]
        assert is_whole(steps, stream, restored, rows)
        step, samples = restored
        for _ in range(random.randrange(3)):  # 0: killed at once
            if samples + rows < stream.num_rows:
                step, samples = step + 1, samples + rows
                saved.append((step, samples))
    resumed, _ = decided(tmp_path, GROWN, epochs=1, rows=rows, store=store_at(*saved[-1]))
    assert resumed == steps


def test_a_roll_back_past_a_change_of_rows_reads_the_rest(tmp_path):
    """A roll-back that leaves rows out keeps the steps; one to a checkpoint before the change of the batch counts."""
    decided(tmp_path, GROWN, epochs=1, rows=4)
    changed, kept, gone = store_at(3, 12), RolledBack(at(2, 16), 4, "a bad batch"), RolledBack(at(2, 8), 4, "memory")
    steps, stream = decided(tmp_path, GROWN, epochs=1, rows=2, store=changed)
    assert decided(tmp_path, GROWN, epochs=1, rows=2, store=changed, then=[kept])[0] == steps
    reports = []
    again, _ = decided(tmp_path, GROWN, epochs=1, rows=2, store=changed, then=[gone], reports=reports)
    assert is_whole(again, stream, (2, 8), 2)
    assert again != steps
    assert [f"ends the run at step {again}, not {steps}" in line for line in reports] == [True]
    assert decided(tmp_path, GROWN, epochs=1, rows=2, store=store_at(2, 8))[0] == again


@pytest.mark.parametrize("between", [{"epochs": 2}, {"epochs": 1, "steps": 40}])
def test_another_length_in_between_is_no_longer_decided(tmp_path, between):
    """Steps that were taken with other rows for another length count when the first length comes back."""
    decided(tmp_path, GROWN, epochs=1, rows=4)
    decided(tmp_path, GROWN, rows=8, store=store_at(1, 4), **between)
    steps, stream = decided(tmp_path, GROWN, epochs=1, rows=4, store=store_at(2, 12))
    assert is_whole(steps, stream, (2, 12), 4)


def test_a_run_of_an_earlier_version_keeps_steps_that_read_all(tmp_path):
    """A decision without the row since which it holds stands, unless it would end the run before its last row."""
    steps, stream = decided(tmp_path, GROWN, epochs=1, rows=4)
    record = tmp_path / "run.json"
    whole = json.loads(record.read_text())
    del whole["auto"]["data.epochs=1"]["since_row"]
    record.write_text(json.dumps(whole | {"schema": 1}))
    assert decided(tmp_path, GROWN, epochs=1, rows=4, store=store_at(2, 12))[0] == steps
    assert is_whole(decided(tmp_path, GROWN, epochs=1, rows=4, store=store_at(3, 8))[0], stream, (3, 8), 4)


@pytest.mark.parametrize(("limits", "steps"), [({"steps": 5}, 5), ({"tokens": 90}, None), ({"minutes": 2.0}, None)])
def test_another_limit_stands(tmp_path, limits, steps):
    """Where steps, tokens or minutes limit a run, its epochs decide nothing."""
    assert decided(tmp_path, CORPUS, epochs=2, **limits)[0] == steps


def test_streamed_epochs_are_no_length(tmp_path):
    """The batches of a stream cannot be counted, and the error names the ways on."""
    with pytest.raises(ConfigurationError, match=r"data\.epochs=2 alone .* run\.budget\.steps, .* data\.mode=cache"):
        decided(tmp_path, CORPUS, mode="stream", epochs=2)
