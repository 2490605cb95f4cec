from __future__ import annotations

import json

import pytest

from holdfast.adapters.monitor.jsonl import JsonlMonitor
from holdfast.bootstrap.run_reading import metric_table as metrics_reader
from holdfast.bootstrap.run_reading.metric_table import MetricsReader


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


@pytest.fixture
def monitor(path):
    opened = JsonlMonitor(path)
    yield opened
    opened.close()


def record(monitor, steps, salt=0.0):
    for step in steps:
        monitor.record(step, {"tokens": step * 10, "loss": 5.0 + salt + step / 1e3, "lr": 0.1})
        if step % 100 == 0:
            monitor.record(step, {"tokens": step * 10, "eval_loss": 6.0 + salt})


def read(reader):
    while reader.poll():
        pass
    return reader


def losses(reader):
    curve = reader.steps.curves(["loss"])["loss"]
    return dict(zip(curve.step.tolist(), curve.value.tolist(), strict=True))


def test_lines_are_read_as_they_come(path, monitor):
    """Each poll gets what was added, and the steps and the evaluations lie apart."""
    reader = MetricsReader(path)
    assert not reader.poll()
    record(monitor, range(1, 151))
    assert reader.poll()
    assert not reader.poll()
    record(monitor, range(151, 301))
    assert reader.poll()
    assert losses(reader) == {step: 5.0 + step / 1e3 for step in range(1, 301)}
    assert reader.evaluations.curves(["eval_loss"])["eval_loss"].step.tolist() == [100, 200, 300]
    assert reader.generation == 0


def test_half_a_line_waits_for_its_end(path):
    """A line that is being written is read once it is whole."""
    path.write_bytes(b'{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    reader = read(MetricsReader(path))
    assert losses(reader) == {1: 2.0}
    with path.open("ab") as file:
        file.write(b'ss": 1.5}\n')
    assert losses(read(reader)) == {1: 2.0, 2: 1.5}


@pytest.mark.parametrize("block", [64, 4096])
def test_a_roll_back_is_noticed(path, monitor, monkeypatch, block):
    """After a cut, and steps that were taken again meanwhile, the rows are those of the file, as in a new reader."""
    monkeypatch.setattr(metrics_reader, "_CHUNK", block * 40)
    monkeypatch.setattr("holdfast.bootstrap.run_reading.metric_table._ROWS_IN_BLOCK", block)
    reader = MetricsReader(path)
    record(monitor, range(1, 1001))
    read(reader)
    monitor.rewind(600)
    record(monitor, range(601, 901), salt=0.5)
    read(reader)
    assert reader.generation == 1
    assert losses(reader) == losses(read(MetricsReader(path)))
    assert losses(reader)[601] == 5.5 + 0.601
    evaluations = reader.evaluations.curves(["eval_loss"])["eval_loss"]
    assert evaluations.step.tolist() == [100, 200, 300, 400, 500, 600, 700, 800, 900]
    assert evaluations.value.tolist() == [6.0] * 6 + [6.5] * 3


def test_results_of_earlier_steps_survive_a_roll_back_once(path, monitor, monkeypatch):
    """After a cut, results that were recorded later than their step stand once, wherever a block of rows begins."""
    monkeypatch.setattr(metrics_reader, "_CHUNK", 800)
    monkeypatch.setattr("holdfast.bootstrap.run_reading.metric_table._ROWS_IN_BLOCK", 16)
    reader = MetricsReader(path)
    for begin in range(0, 1000, 50):
        record(monitor, range(begin + 1, begin + 51))
        monitor.record(max(1, begin - 30), {"suite/own/acc": begin / 1000})
        read(reader)
    for step in (777, 555, 333):
        monitor.rewind(step)
        read(reader)
        found, fresh = (
            each.evaluations.curves(["suite/own/acc", "eval_loss"]) for each in (reader, read(MetricsReader(path)))
        )
        for name, curve in fresh.items():
            assert found[name].step.tolist() == curve.step.tolist()
            assert found[name].value.tolist() == curve.value.tolist()


def test_a_roll_back_reads_little_again(path, monitor, monkeypatch):
    """The rows before the cut are not read again: a roll-back of a long run costs as much as the steps that it lost."""
    monkeypatch.setattr(metrics_reader, "_CHUNK", 4000)
    monkeypatch.setattr("holdfast.bootstrap.run_reading.metric_table._ROWS_IN_BLOCK", 64)
    reader = MetricsReader(path)
    record(monitor, range(1, 2001))
    read(reader)
    monitor.rewind(1900)
    kept = path.stat().st_size
    reads = []
    monkeypatch.setattr(
        reader, "_add", lambda offset, lines, add=reader._add: (reads.append(len(lines)), add(offset, lines))
    )
    read(reader)
    assert reader.steps.last_step == 1900
    assert sum(reads) < kept / 5


def test_another_run_at_the_same_place_replaces_the_rows(path, monitor):
    """With --fresh the folder is renamed and begins anew: nothing of the old run stays."""
    reader = MetricsReader(path)
    record(monitor, range(1, 301))
    read(reader)
    monitor.rewind(300)  # it opens the file at its next record
    path.replace(path.with_name("old"))
    assert reader.poll()
    assert reader.steps.num_rows == reader.evaluations.num_rows == 0
    record(monitor, range(1, 5), salt=1.0)
    assert list(losses(read(reader))) == [1, 2, 3, 4]


def test_numbers_that_json_lacks_and_strange_lines_are_read(path):
    """NaN and infinities are numbers, and lines without a step or with other values do not stop the reader."""
    lines = [
        '{"step": 1, "loss": "NaN", "lr": 1}',
        '{"step": 2, "loss": "Infinity", "lr": 1}',
        "not json",
        '{"note": "by hand"}',
        '{"step": "x", "loss": 1.0}',
        '{"step": 3, "loss": 1.0, "lr": [1]}',
        '{"step": 4, "loss": 2.5, "lr": 3, "step_": 7}',
        "[1]",
    ]
    path.write_text("\n".join(lines) + "\n")
    reader = read(MetricsReader(path))
    assert losses(reader) == {2: float("inf"), 3: 1.0, 4: 2.5}
    assert reader.steps.latest("step") == (4, 7.0)
    assert reader.steps.num_rows == 4


def test_a_large_file_is_sampled_first(path, monkeypatch):
    """Until a large file is read, a sample of its steps over its whole length stands for it."""
    monkeypatch.setattr(metrics_reader, "_LARGE", 1000)
    monkeypatch.setattr(metrics_reader, "_CHUNK", 2000)
    with path.open("w") as file:
        for step in range(1, 10_001):
            file.write(json.dumps({"step": step, "loss": step / 7}) + "\n")
    reader = MetricsReader(path)
    reader.poll(1)
    assert reader.share < 0.1
    sample = reader.overview.curves(["loss"])["loss"]
    assert sample.step[0] == 1
    assert sample.step[-1] > 9_900
    assert sample.value.tolist() == [step / 7 for step in sample.step.tolist()]
    read(reader)
    assert (reader.overview, reader.share, reader.steps.num_rows) == (None, 1.0, 10_000)
