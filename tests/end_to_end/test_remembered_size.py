"""A run that fell short of memory, and those behind it."""

from __future__ import annotations

import json

import pytest

from holdfast.adapters.model_factory.memory import MemoryModelFactory
from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.bootstrap import build
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.events import BatchSplit, ContractWeakened, MemoryExhausted, StepCompleted
from tests.support.command_line import corpus, run, tiny


@pytest.fixture
def train(tmp_path):
    """Return what trains a run called ``name`` in batches of 8 rows where no more than ``max_rows`` fit."""
    path = corpus(tmp_path)

    def run(name, *more, max_rows=None, steps=4):
        overrides = tiny(path, f"run.dir={tmp_path / name}", f"run.budget.steps={steps}", "optimizer.batch_size=8")
        settings = load_settings([], [*overrides, "monitors=[]", "evaluation.every=0", *more], {}).settings
        said, events = [], []
        parts = {"model_factory": MemoryModelFactory(), "optimizer": MemoryOptimizer(max_rows=max_rows)}
        run = build(settings, report=said.append, **parts)
        for kind in (MemoryExhausted, BatchSplit, ContractWeakened, StepCompleted):
            run.subscribe(kind, events.append)
        run.run()
        return said, events

    return run


def sizes(events):
    """Return the rows at once of each step."""
    return [event.outcome.micro_batch for event in events if isinstance(event, StepCompleted)]


def names(events):
    """Return the kinds of events but for the steps."""
    return [type(event).__name__ for event in events if not isinstance(event, StepCompleted)]


def test_the_size_that_fits_is_remembered_across_runs(train, tmp_path):
    """A later run of the same model begins with the size an earlier one came to, and keeps the reason."""
    _, events = train("first", max_rows=3)
    assert names(events) == ["MemoryExhausted", "BatchSplit", "ContractWeakened", "MemoryExhausted", "BatchSplit"]
    said, events = train("second", max_rows=3)
    assert (names(events), sizes(events)) == ([], [2] * 4)
    assert any("micro-batches of 2, not 8" in line for line in said)
    record = json.loads((tmp_path / "second" / "run.json").read_text())
    assert record["auto"]["optimizer.micro_batch"] == {"value": "2", "reason": "more did not fit before"}
    _, events = train("longer", "data.sequence_length=32", max_rows=8)
    assert sizes(events) == [8] * 4


def test_sizes_that_earlier_versions_remembered_still_count(train, tmp_path):
    """What a remembered size is of is named as version 0.1.0 named it."""
    train("first", max_rows=3)
    assert json.loads((tmp_path / "first" / "micro-batch.json").read_text())["key"] == (
        "90000 parameters (model 75dd27c0), 64 tokens, ranks 1, optimizer.kind accelerate, optimizer.precision fp32, "
        "optimizer.sharding auto, optimizer.offload False, model.attention sdpa,eager, model.compile auto, device cpu, "
        "algorithm adamw"
    )


def test_a_resume_goes_on_with_the_size_of_its_own_run(train):
    """What another run came to meanwhile changes no resume, and what the run itself came to does."""
    train("run", steps=2)
    train("another", max_rows=3)
    _, events = train("run", max_rows=4, steps=4)
    assert names(events) == ["MemoryExhausted", "BatchSplit", "ContractWeakened"]
    _, events = train("run", max_rows=4, steps=6)
    assert (names(events), sizes(events)) == ([], [4, 4])


def test_a_configured_size_is_nobody_elses(train):
    """A number in optimizer.micro_batch is taken whatever other runs came to."""
    train("first", max_rows=3)
    _, events = train("second", "optimizer.micro_batch=4")
    assert sizes(events) == [4] * 4


def test_a_damaged_memory_is_told_and_left_alone(train, tmp_path):
    """A broken file of sizes costs a line, not the run."""
    train("first", max_rows=3)
    (remembered,) = (tmp_path / "cache" / "micro-batch").iterdir()
    remembered.write_text("{")
    said, events = train("second")
    assert any(str(remembered) in line for line in said)
    assert sizes(events) == [8] * 4


def test_a_larger_size_is_tried_again_after_quiet_steps(train, tmp_path):
    """Once memory is there again the run comes back to its own size, and remembers that."""
    train("run", max_rows=4, steps=2)
    _, events = train("run", "resources.grow_after=3", steps=8)
    assert sizes(events) == [4, 4, 4, 8, 8, 8]
    assert json.loads((tmp_path / "run" / "micro-batch.json").read_text())["rows"] == 8


def test_a_small_model_takes_all_rows_without_a_trial(tmp_path):
    """By default the formula decides where there is plenty of memory, and run.json keeps the reason."""
    overrides = tiny(corpus(tmp_path), f"run.dir={tmp_path / 'run'}", "run.budget.steps=1", "monitors=[]")
    build(load_settings([], [*overrides, "evaluation.every=0"], {}).settings).run()
    decided = json.loads((tmp_path / "run" / "run.json").read_text())["auto"]["optimizer.micro_batch"]
    assert decided["value"] == "4"
    assert "the formula takes" in decided["reason"]


@pytest.mark.slow
def test_a_trial_finds_what_memory_is_there_for(tmp_path):
    """With next to nothing to spare one row is taken after a trial, and a resume takes it again."""
    overrides = tiny(corpus(tmp_path), f"run.dir={tmp_path / 'run'}", "evaluation.every=0")
    for steps in (1, 2):
        more = [f"run.budget.steps={steps}", "resources.gpu_memory_fraction=1e-6"]
        process = run("train", *overrides, *more, cwd=tmp_path)  # in a process that holds no memory of others' tests
        assert "micro-batches of 1, not 4" in process.stderr, process.stderr
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [record["micro_batch"] for record in map(json.loads, lines) if "micro_batch" in record] == [1, 1]
    assert "ContractWeakened" not in (tmp_path / "run" / "events.jsonl").read_text()
    reason = json.loads((tmp_path / "run" / "run.json").read_text())["auto"]["optimizer.micro_batch"]["reason"]
    assert reason.startswith("by trial: a peak of")
