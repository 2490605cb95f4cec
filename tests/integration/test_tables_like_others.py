"""Tables hold the texts and token ids that pyarrow, pandas and datasets find in them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.formats.records import Limits
from holdfast.adapters.data_source.huggingface import HuggingfaceDataSource
from holdfast.adapters.token_source.files import FilesTokenSource
from holdfast.ports.testing.token_source import all_documents

pd = pytest.importorskip("pandas")
datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.slow

TEXTS = [f"text {number} für 四\r\n \u2028 {'x' * (number * 37 % 900)}" for number in range(300)]
END = 999
IDS = [[*(np.arange(number * 7 % 90) * number % END).tolist(), END] for number in range(300)]
OPTIONS = {"end_of_text": END, "vocabulary_size": END + 1, "shard_tokens": 5000}

STRINGS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "dictionary": pa.dictionary(pa.int16(), pa.string()),
    "dictionary of large strings": pa.dictionary(pa.int32(), pa.large_string()),
}
VIEWS = {"string_view": pa.string_view(), "binary_view": pa.binary_view()}
LISTS = {
    "list of int16": pa.list_(pa.int16()),
    "list of int32": pa.list_(pa.int32()),
    "list of int64": pa.list_(pa.int64()),
    "large list of uint16": pa.large_list(pa.uint16()),
    "large list of uint64": pa.large_list(pa.uint64()),
}
WRITING = {
    "as usual": {},
    "uncompressed": {"compression": "none"},
    "gzip": {"compression": "gzip", "row_group_size": 17},
    "zstd, pages of version 2": {"compression": "zstd", "data_page_version": "2.0", "data_page_size": 500},
    "brotli, no dictionary": {"compression": "brotli", "use_dictionary": False, "row_group_size": 1},
    "delta encoding": {"use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY"}},
    "checksums": {"write_page_checksum": True, "row_group_size": 100},
}


def texts_of(source):
    return [document.text for unit in source.units() for document in source.read(unit)]


def as_text(values):
    return [value.decode() if isinstance(value, bytes) else value for value in values]


def write_arrow(path, table, kind=pa.ipc.new_file, **options):
    with kind(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=70)


@pytest.mark.parametrize("writing", WRITING)
@pytest.mark.parametrize("kind", STRINGS)
def test_texts_of_parquet_are_those_of_pyarrow_and_pandas(tmp_path, kind, writing):
    """Whatever the type, the encoding and the pages of a column, its texts are those that others find."""
    if "dictionary" in kind and writing == "delta encoding":
        pytest.skip("pyarrow does not decode it")
    path = tmp_path / "a.parquet"
    column = pa.array(TEXTS).cast(STRINGS[kind])
    pq.write_table(pa.table({"id": range(len(TEXTS)), "text": column}), path, **WRITING[writing])
    found = texts_of(FilesDataSource([str(path)], limits=Limits(unit_bytes=5000)))
    assert found == as_text(pq.read_table(path)["text"].to_pylist()) == as_text(pd.read_parquet(path)["text"]) == TEXTS


@pytest.mark.parametrize("ipc", [pa.ipc.new_file, pa.ipc.new_stream])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("kind", STRINGS | VIEWS)
def test_texts_of_arrow_are_those_of_pyarrow(tmp_path, kind, compression, ipc):
    """Arrow files, streams and Feather, compressed or not, hold the texts that pyarrow finds."""
    column = pa.array(TEXTS).cast((STRINGS | VIEWS)[kind])
    write_arrow(tmp_path / "a.arrow", pa.table({"text": column}), ipc, compression=compression)
    opened = (pa.ipc.open_file if ipc is pa.ipc.new_file else pa.ipc.open_stream)(tmp_path / "a.arrow")
    found = texts_of(FilesDataSource([str(tmp_path / "a.arrow")], limits=Limits(unit_bytes=5000)))
    assert found == as_text(opened.read_all()["text"].to_pylist()) == TEXTS


def test_texts_that_pandas_writes_are_read(tmp_path):
    """An index, a categorical column and one with missing values beside the text change nothing."""
    frame = pd.DataFrame({"text": TEXTS, "kind": pd.Categorical(["a", "b", None] * 100)}, index=range(500, 800))
    frame.to_parquet(tmp_path / "a.parquet")
    frame.reset_index().to_feather(tmp_path / "a.feather")
    for name in ("a.parquet", "a.feather"):
        assert texts_of(FilesDataSource([str(tmp_path / name)])) == TEXTS
        chosen = FilesDataSource([str(tmp_path / name)], filter={"kind": "b"})
        assert texts_of(chosen) == frame[frame["kind"] == "b"]["text"].tolist()


def test_texts_of_datasets_are_those_of_the_library(tmp_path, monkeypatch):
    """Saved with several shards, shuffled, chosen or joined, a dataset has the texts that the library gives."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    whole = datasets.Dataset.from_dict({"text": TEXTS})
    made = {
        "shards": whole,
        "shuffled": whole.shuffle(seed=1),
        "chosen": whole.select([5, 3, 299, 3]),
        "filtered": whole.filter(lambda row: "7" in row["text"]),
        "joined": datasets.concatenate_datasets([whole, whole.select(range(9))]),
        "categories": whole.add_column("kind", ["a", "b", "c"] * 100).class_encode_column("kind"),
    }
    for name, dataset in made.items():
        dataset.save_to_disk(str(tmp_path / name), num_shards=2)
        source = HuggingfaceDataSource(str(tmp_path / name), limits=Limits(unit_bytes=3000))
        assert texts_of(source) == list(datasets.load_from_disk(str(tmp_path / name))["text"]), name
        dataset.to_parquet(str(tmp_path / f"{name}.parquet"))
        assert texts_of(FilesDataSource([str(tmp_path / f"{name}.parquet")])) == list(dataset["text"]), name


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_ids_of_tables_are_those_of_pyarrow(tmp_path, name, kind):
    """Lists of any integers hold the ids that pyarrow finds, row for row."""
    table = pa.table({"input_ids": pa.array(IDS, LISTS[kind])})
    if name == "a.parquet":
        pq.write_table(table, tmp_path / name, row_group_size=33)
        assert pq.read_table(tmp_path / name)["input_ids"].to_pylist() == IDS
    else:
        write_arrow(tmp_path / name, table)
    assert all_documents(FilesTokenSource([str(tmp_path / name)], folder=tmp_path / "kept", **OPTIONS)) == IDS


def test_ids_of_equal_length_are_those_of_pyarrow(tmp_path):
    """Lists of a fixed size hold their ids too."""
    rows = [[number, number + 1, END] for number in range(200)]
    pq.write_table(pa.table({"input_ids": pa.array(rows, pa.list_(pa.int32(), 3))}), tmp_path / "a.parquet")
    assert all_documents(FilesTokenSource([str(tmp_path / "a.parquet")], folder=tmp_path / "kept", **OPTIONS)) == rows


def test_ids_of_datasets_are_those_of_the_library(tmp_path):
    """A saved dataset of token ids and its Parquet have the ids, labels and masks that the library gives."""
    rows = {
        "input_ids": IDS,
        "labels": [[-100, *ids[1:]] for ids in IDS],
        "attention_mask": [[1] * len(ids) for ids in IDS],
    }
    dataset = datasets.Dataset.from_dict(rows)
    dataset.save_to_disk(str(tmp_path / "saved"), num_shards=1)
    dataset.to_parquet(str(tmp_path / "a.parquet"))
    for name in ("saved", "a.parquet"):
        source = FilesTokenSource([str(tmp_path / name)], folder=tmp_path / "kept", **OPTIONS)
        assert all_documents(source) == list(datasets.load_from_disk(str(tmp_path / "saved"))["input_ids"])
        masks = [source.open(shard).loss_mask[:] for shard in source.shards()]
        assert np.concatenate(masks).tolist() == [label != -100 for labels in rows["labels"] for label in labels]
