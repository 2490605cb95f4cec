"""Columns of JSON in tables: what datasets writes for records of different shapes."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.huggingface import HuggingfaceDataSource
from holdfast.ports.data_source import Document

datasets = pytest.importorskip("datasets")

SHAPES = [{"city": {"type": "string"}}, {"x": {"type": "integer", "default": None}, "mode": {"type": ["a", None]}}]
TOOLS = [
    {
        "messages": [{"role": "user", "content": f"do {i}"}, {"role": "assistant", "content": "done"}],
        "tools": [{"type": "function", "function": {"name": f"f{i}", "parameters": {"properties": SHAPES[i % 2]}}}],
    }
    for i in range(6)
]
CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]
MIXED = [
    {
        "messages": [
            {"role": "user", "content": f"do {i}"},
            *([{"role": "assistant", "content": "", "tool_calls": CALLS}] if i % 2 else []),
            {"role": "assistant", "content": "done"},
        ]
    }
    for i in range(6)
]
PAIRS = [
    {"prompt": "p", "chosen": [{"role": "assistant", "content": f"good {i}"}], "rejected": "bad"} for i in range(6)
]
PAIRS = [
    {**pair, "rejected": [{"role": "assistant", "content": "bad", **({"k": 1} if i else {})}]}
    for i, pair in enumerate(PAIRS)
]
RECORDS = {"tools": (TOOLS, "chat"), "mixed": (MIXED, "chat"), "pairs": (PAIRS, "preference")}


def lines(records):
    return "".join(json.dumps(record) + "\n" for record in records)


def texts_of(source):
    found = [document for unit in source.units() for document in source.read(unit)]
    assert all(isinstance(each, Document) for each in found), found
    return [document.text for document in found]


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """Return the same records as JSON Lines, and in each way that datasets stores or reads them."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def sources(records):
        (tmp_path / "lines").mkdir()
        path = tmp_path / "lines/a.jsonl"
        path.write_text(lines(records))
        dataset = datasets.load_dataset("json", data_files=str(path), split="train")
        dataset.to_parquet(str(tmp_path / "a.parquet"))
        dataset.save_to_disk(str(tmp_path / "saved"))
        with pa.ipc.new_file(tmp_path / "a.arrow", dataset.data.schema) as writer:
            writer.write_table(dataset.data.table)
        found = {name: FilesDataSource([str(tmp_path / name)]) for name in ("lines/a.jsonl", "a.parquet", "a.arrow")}
        return found | {name: HuggingfaceDataSource(str(tmp_path / name)) for name in ("lines", "saved")}

    return sources


@pytest.mark.parametrize("name", RECORDS)
def test_json_in_columns_is_what_it_stands_for(sources, name):
    """A column of JSON gives the objects that the same records have as JSON Lines, null members included."""
    records, task = RECORDS[name]
    found = {way: texts_of(source.with_task(task)) for way, source in sources(records).items()}
    assert [len(texts) for texts in found.values()] == [len(records)] * len(found)
    assert all(texts == found["lines/a.jsonl"] for texts in found.values()), found


def test_tokens_of_undecoded_json_are_not_used(tmp_path):
    """A table with JSON among the columns that are read is another one than a table with text there."""
    files = []
    for kind in (pa.json_(), pa.string()):
        table = pa.table({"prompt": pa.array(['"p"', '"q"'], kind), "completion": ["a", "b"], "text": ["x", "y"]})
        pq.write_table(table, tmp_path / "a.parquet")
        source = FilesDataSource([str(tmp_path / "a.parquet")])
        assert source.files().files[0].form == "parquet"
        files.append(source.with_task("completion").files().files[0].form)
    assert files == ["parquet+json", "parquet"]


@pytest.mark.parametrize(("value", "text"), [('"a text"', "a text"), ("null", None), ("3", None)])
def test_a_text_in_a_column_of_json_is_text(tmp_path, value, text):
    """What a text column of JSON holds besides text is rejected by its row."""
    pq.write_table(pa.table({"text": pa.array([value], pa.json_())}), tmp_path / "a.parquet")
    source = FilesDataSource([str(tmp_path)])
    (found,) = source.read(source.units()[0])
    assert found.text == text if text else "a.parquet, row 0" in found.reason


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.parquet"])
@pytest.mark.parametrize(
    ("record", "value"),
    [
        ({"a": {"b": "N"}, "text": "t"}, "N"),
        ({"a.b": "L", "text": "t"}, "L"),
        ({"a.b": "L", "a": {"b": "N"}, "text": "t"}, None),
    ],
)
def test_a_name_with_a_dot_is_a_field_or_a_member(tmp_path, name, record, value):
    """Text, filter and kept fields follow a.b the same way in each format; what may be read both ways is refused."""
    path = tmp_path / name
    if name == "a.parquet":
        pq.write_table(pa.Table.from_pylist([record]), path)
    else:
        path.write_text(json.dumps([record] if name == "a.json" else record))
    text, filtered = FilesDataSource([str(path)], text_field="a.b"), FilesDataSource([str(path)], filter={"a.b": value})
    sources = [text, filtered.with_fields(["a.b"])]
    found = [each for source in sources for unit in source.units() for each in source.read(unit)]
    if value is None:
        reason = "'a.b' is the name of a field, and there is also 'b' within 'a'"
        assert [reason in each.reason for each in found] == [True, True]
    else:
        assert [each.text for each in found] == [value, "t"]
        assert found[1].fields == {"a.b": value}
        other = FilesDataSource([str(path)], filter={"a.b": "x"})
        assert [each for unit in other.units() for each in other.read(unit)] == []
