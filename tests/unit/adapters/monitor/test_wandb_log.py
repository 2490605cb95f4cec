"""Files of W&B's library are read and cut record by record."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("wandb")

from wandb.proto.wandb_internal_pb2 import Record

from holdfast.adapters.monitor.wandb_log import LogReader, Row, _write, cut, extent_of, kinds_of, rows_of

HEADER = b":W&B\xe1\xbe\x00"


def history(number, step, **columns):
    record = Record()
    record.history.step.num = number
    for name, value in ({"_step": number, "step": step} | columns).items():
        item = record.history.item.add()
        item.nested_key.append(name)
        item.value_json = json.dumps(value)
    return record.SerializeToString()


def summary(loss):
    record = Record()
    item = record.summary.update.add()
    item.key, item.value_json = "loss", json.dumps(loss)
    return record.SerializeToString()


def other(size):
    record = Record()
    record.output_logger.line = "x" * size
    return record.SerializeToString()


def write(path, *records):
    with path.open("wb") as file:
        file.write(HEADER)
        for record in records:
            _write(file, record)
    return path


def test_records_of_any_size_are_read_back(tmp_path):
    """Records shorter and longer than a block, and ends of blocks, are read as they were written."""
    sizes = [0, 1, 32740, 32761, 32768, 100_000, 5, *range(32700, 32780, 3)]
    records = [other(size) for size in sizes]
    path = write(tmp_path / "run.wandb", *records)
    assert list(LogReader(path).read()) == records


def test_a_torn_end_is_not_read(tmp_path):
    """Reading ends before a record that is incomplete or damaged, and goes on once it is complete."""
    path = write(tmp_path / "run.wandb", history(1, 1), history(2, 2))
    content = path.read_bytes()
    for end in (len(content) - 1, len(content) - 30):
        path.write_bytes(content[:end])
        reader = LogReader(path)
        assert list(kinds_of(reader)) == ["history"]
        path.write_bytes(content)
        assert list(kinds_of(reader)) == ["history"]
        assert list(kinds_of(reader)) == []
    path.write_bytes(content[:-3] + b"\xff\xff\xff")
    assert list(kinds_of(LogReader(path))) == ["history"]


def test_rows_have_their_columns(tmp_path):
    """A row has its number, its step and its figures; W&B's own columns are left out."""
    path = write(tmp_path / "run.wandb", history(7, 3, loss=2.5, _runtime=9.0, _timestamp=1.0, big="NaN"), other(3))
    (row,) = rows_of(path)
    assert row[:2] == (7, 3)
    assert row.columns["loss"] == 2.5
    assert sorted(row.columns) == ["big", "loss"]


def test_the_extent_of_a_file_is_that_of_its_rows(tmp_path):
    """The largest number and step of the rows are found, in whatever order they are, and 0 in a file without rows."""
    path = write(tmp_path / "run.wandb", history(7, 300, loss=2.5), other(3), history(8, 200, loss=1.0), summary(1.0))
    assert extent_of(path) == (8, 300)
    assert extent_of(write(tmp_path / "none.wandb", other(3))) == (0, 0)


def test_cut_removes_rows_and_their_summaries(tmp_path):
    """The rows that do not stay go with the summaries in front of them; everything else keeps its order."""
    kept = [other(10), summary(1.0), history(1, 1), other(40_000)]
    path = write(tmp_path / "run.wandb", *kept, summary(2.0), history(2, 2), other(2), summary(9.0))
    cut(path, lambda row: row.step < 2)
    assert path.read_bytes()[:7] == HEADER
    assert list(LogReader(path).read()) == [*kept, other(2), summary(9.0)]
    assert list(rows_of(path)) == [Row(1, 1, {})]
