"""The same documents in every format and compression, whole and in parts."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zipfile
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.formats.compression import zstd
from holdfast.adapters.data_source.formats.records import Limits
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.ports.data_source import Document, Rejected
from tests.support.reading import read_all, texts_of

TEXTS = [
    "one\ntwo\r\n",
    "für 四 🙂",
    '"quotes", ""twice"" and \\',
    ",",
    " led and trailed ",
    *map(str, range(40)),
    "last",
]
RECORDS = [{"id": number, "text": text, "language": "en" if number % 3 else "de"} for number, text in enumerate(TEXTS)]
PACK = {"": bytes, ".gz": gzip.compress, ".zst": zstd.compress}

lines = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.just("x" * 70), st.just("四" * 25))


def jsonl(records, start=0):
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def separated(records, delimiter=","):
    rows = io.StringIO()
    writer = csv.DictWriter(rows, list(records[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return rows.getvalue().encode()


def parquet(records):
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records), file, row_group_size=7)
    return file.getvalue()


def arrow(records, kind=pa.ipc.new_file):
    file = io.BytesIO()
    table = pa.Table.from_pylist(records)
    with kind(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return file.getvalue()


FILES = {
    **{f"a.jsonl{suffix}": pack(jsonl(RECORDS)) for suffix, pack in PACK.items()},
    **{f"a.csv{suffix}": pack(separated(RECORDS)) for suffix, pack in PACK.items()},
    **{f"a.tsv{suffix}": pack(separated(RECORDS, "\t")) for suffix, pack in PACK.items()},
    "a.parquet": parquet(RECORDS),
    "a.arrow": arrow(RECORDS),
    "a.feather": arrow(RECORDS, pa.ipc.new_stream),
}


def put(folder, name, content):
    (folder / name).write_bytes(content)
    return str(folder / name)


@pytest.mark.parametrize("unit_bytes", [1, 400, 1 << 20])
@pytest.mark.parametrize("name", FILES)
def test_every_format_gives_the_same_texts(tmp_path, name, unit_bytes):
    """Whatever holds the records, their texts are the same, and each document and each unit can be read again."""
    source = FilesDataSource([put(tmp_path, name, FILES[name])], limits=Limits(unit_bytes=unit_bytes))
    assert texts_of(source) == TEXTS
    for unit in source.units():
        documents = list(source.read(unit))
        for index, document in enumerate(documents):
            assert list(source.read(unit, document.start)) == documents[index:]


@pytest.mark.parametrize("name", FILES)
def test_a_filter_leaves_out_other_records(tmp_path, name):
    """Of the records only those count whose fields hold one of the values allowed; the rest leaves no trace."""
    path = put(tmp_path, name, FILES[name])
    german = [record["text"] for record in RECORDS if record["language"] == "de"]
    assert texts_of(FilesDataSource([path], filter={"language": "de"})) == german
    assert texts_of(FilesDataSource([path], filter={"language": ["de"], "id": [0, 1, 3]})) == [TEXTS[0], TEXTS[3]]
    assert texts_of(FilesDataSource([path], filter={"language": []})) == []


def test_a_filter_tells_types_apart(tmp_path):
    """In JSON the number 1, the text 1 and true are three values, and a field that is missing is null."""
    kept = [1, "1", True, None, [1], 2.5]
    content = jsonl([{"text": repr(value), "kept": value} for value in kept] + [{"text": "missing"}])
    path = put(tmp_path, "a.jsonl", content)
    assert texts_of(FilesDataSource([path], filter={"kept": 1})) == ["1"]
    assert texts_of(FilesDataSource([path], filter={"kept": ["1", True]})) == ["'1'", "True"]
    assert texts_of(FilesDataSource([path], filter={"kept": [None, 2.5]})) == ["None", "2.5", "missing"]


@pytest.mark.parametrize("suffix", PACK)
def test_the_format_and_the_compression_may_be_told(tmp_path, suffix):
    """A file whose suffix says nothing is read as it is told."""
    path = put(tmp_path, "a.strange", PACK[suffix](jsonl(RECORDS)))
    compression = suffix.removeprefix(".") or "none"
    assert texts_of(FilesDataSource([path], format="jsonl", compression=compression)) == TEXTS


@settings(deadline=None)
@given(
    texts=st.lists(lines),
    unit_bytes=st.integers(1, 200),
    document_bytes=st.integers(4, 60),
    kind=st.sampled_from(["txt", "jsonl"]),
    ending=st.sampled_from(["\n", "\r\n", "\n\n", ""]),
)
def test_the_size_of_the_units_changes_no_document(texts, unit_bytes, document_bytes, kind, ending):
    """However a file is divided, its documents are those of the whole, in order, each in the unit it begins in."""
    records = [json.dumps({"text": text}, ensure_ascii=False) for text in texts] if kind == "jsonl" else texts
    content = (ending or "\n").join(records) + ending
    with TemporaryDirectory() as folder:
        path = put(Path(folder), f"a.{kind}", content.encode())
        whole = FilesDataSource([path], limits=Limits(document_bytes, 60, 1 << 20))
        parts = FilesDataSource([path], limits=Limits(document_bytes, 60, unit_bytes))
        units = parts.units()
        assert [unit.name for unit in units] == sorted({unit.name for unit in units})
        assert all(one.stop == other.start for one, other in pairwise(units))
        found = read_all(parts)
        rejected = [item for item in read_all(whole) if isinstance(item, Rejected)]
        assert [item for item in found if isinstance(item, Document)] == [
            item for item in read_all(whole) if isinstance(item, Document)
        ]
        assert [item.start for item in found if isinstance(item, Rejected)] == [item.start for item in rejected]
        for unit in units:
            items = list(parts.read(unit))
            assert all(unit.start <= item.start < (unit.stop or sys.maxsize) for item in items)
            for index, item in enumerate(items):
                assert list(parts.read(unit, item.end)) == items[index + 1 :]


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(lines, lines.filter(str.strip)), min_size=1),
    delimiter=st.sampled_from(["csv", "tsv"]),
    ending=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
def test_separated_values_come_back(rows, delimiter, ending, quoting):
    """Whatever a text holds, a row gives it back, from the bytes that say so and from any row's start on."""
    file = io.StringIO()
    marks = {"csv": ",", "tsv": "\t"}
    if quoting == csv.QUOTE_MINIMAL:  # then Python's writer leaves a lone carriage return without quotes
        rows = [(other.replace("\r", ""), text.replace("\r", "") + ".") for other, text in rows]
    writer = csv.writer(file, delimiter=marks[delimiter], lineterminator=ending, quoting=quoting)
    writer.writerows([("other", "text"), *rows])
    content = file.getvalue().encode()
    with TemporaryDirectory() as folder:
        source = FilesDataSource([put(Path(folder), f"a.{delimiter}", content)])
        (unit,) = source.units()
        documents = list(source.read(unit))
        assert [document.text for document in documents] == [text for _, text in rows]
        assert [document.start for document in documents[1:]] == [document.end for document in documents[:-1]]
        for index, document in enumerate(documents):
            assert list(source.read(unit, document.end)) == documents[index + 1 :]


@settings(deadline=None)
@given(name=st.sampled_from(sorted(FILES)), data=st.data(), unit_bytes=st.sampled_from([1, 50, 1 << 20]))
def test_damage_is_rejected_and_nothing_else_happens(name, data, unit_bytes):
    """Whatever the bytes are, reading yields documents and rejections at growing positions, the same from each on."""
    content = bytearray(FILES[name])
    is_table = name in ("a.parquet", "a.arrow", "a.feather")  # Arrow ends the process at some wrong bytes in them
    for _ in range(0 if is_table else data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content)))) :]
    with TemporaryDirectory() as folder:
        source = FilesDataSource([put(Path(folder), name, bytes(content))], limits=Limits(unit_bytes=unit_bytes))
        for unit in source.units():
            found = list(source.read(unit))
            assert all(item.end is not None for item in found[:-1])
            assert all(one.end <= other.start < (other.end or sys.maxsize) for one, other in pairwise(found))
            for index, item in enumerate(found[:3]):
                assert list(source.read(unit, item.start)) == found[index:]


def test_units_sort_in_the_order_of_the_file(tmp_path):
    """The names of a file's parts say where they start, and sort as they lie, also behind a power of ten."""
    path = put(tmp_path, "a.jsonl", jsonl(RECORDS[5:16]))
    units = FilesDataSource([path], limits=Limits(unit_bytes=60)).units()
    names = [unit.name.removeprefix(path) for unit in units]
    assert names[:3] == ["", "@060", "@120"]
    assert [unit.start for unit in units] == sorted(unit.start for unit in units)
    assert sum(unit.size for unit in units) == Path(path).stat().st_size


def test_parts_are_as_large_as_is_told(tmp_path):
    """Row groups and record batches are put together until they make a unit, and a small file is one."""
    for name in ("a.parquet", "a.arrow"):
        path = put(tmp_path, name, FILES[name])
        counts = [len(FilesDataSource([path], limits=Limits(unit_bytes=size)).units()) for size in (1, 1500, 1 << 20)]
        assert counts[0] == 7
        assert 1 < counts[1] < 7
        assert counts[2] == 1


def test_a_name_that_looks_like_a_part_is_refused(tmp_path):
    """A file that is called like a part of another one is an error, and does not take its place."""
    put(tmp_path, "a.jsonl", jsonl(RECORDS))
    put(tmp_path, "a.jsonl@1000", jsonl(RECORDS))
    with pytest.raises(DataError, match="rename"):
        FilesDataSource([str(tmp_path)], format="jsonl", limits=Limits(unit_bytes=1000)).units()


ROWS = {
    "too few fields": (b"1\n", "1 fields and the header 2"),
    "too many fields": (b"1,x,y\n", "3 fields and the header 2"),
    "stray quote": (b'1,"x"y\n', "cannot be read"),
    "Latin-1": (b"1,f\xfcr\n", "byte 20 is not UTF-8"),
    "Latin-1 in another field": (b"f\xfcr,x\n", "byte 18 is not UTF-8"),
    "long": (b"1," + b"x" * 300 + b"\n", "longer than 200 bytes"),
    "long and quoted": (b'1,"' + b'x ""x""\n' * 40 + b'"\n', "longer than 200 bytes"),
    "long in many lines": (b'1,"' + b"x\n" * 200 + b'"\n', "longer than 200 bytes"),
}


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("case", ROWS)
def test_a_bad_row_is_named(tmp_path, case, suffix):
    """A rejection tells file and byte of a row that cannot be used, and the next one is read."""
    row, problem = ROWS[case]
    content = b"id,text\n1,good\n\n" + b"\n" + row + b"2,too\n"
    source = FilesDataSource(
        [put(tmp_path, f"bad.csv{suffix}", PACK[suffix](content))], limits=Limits(record_bytes=200)
    )
    first, bad, last = read_all(source)
    assert (first.text, last.text) == ("good", "too")
    assert content[bad.start : bad.end] == row
    assert f"bad.csv{suffix}" in bad.reason
    assert problem in bad.reason
    assert "not UTF-8" in problem or "row at byte 17" in bad.reason
    assert list(source.read(source.units()[0], bad.end)) == [last]


def test_a_row_that_is_cut_off_is_named(tmp_path):
    """A file that ends within quotes says so and does not give half a text."""
    first, bad = read_all(FilesDataSource([put(tmp_path, "bad.csv", b'text\ngood\n"cut\n')]))
    assert first.text == "good"
    assert "row at byte 10" in bad.reason


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"t\xfcxt\na\n", "start with a header"),
        (b'"text\nmore', "not a header"),
        (b"id,body\n1,x\n", "no column 'text', only 'id', 'body': set data.text_field"),
    ],
)
def test_a_header_that_cannot_be_used_is_named(tmp_path, content, problem):
    """A csv file without a header or without the column is rejected as a whole."""
    (bad,) = read_all(FilesDataSource([put(tmp_path, "bad.csv", content)]))
    assert "bad.csv" in bad.reason
    assert problem in bad.reason
    assert bad.end is None


def test_the_files_of_a_path_have_one_header(tmp_path):
    """A header that differs from the first file's is rejected, another order of its columns or another path is not."""
    for name, header in {"a": "id,text", "b": "text,id", "c": "text,number"}.items():
        put(tmp_path, f"{name}.csv", f"{header}\n{name},{name}\n".encode())
    first, second, bad = read_all(FilesDataSource([str(tmp_path)]))
    assert (first.text, second.text) == ("a", "b")
    assert "c.csv: the header 'text', 'number' differs from that of" in bad.reason
    assert "a.csv, 'id', 'text'" in bad.reason
    apart = FilesDataSource([str(tmp_path / "[ab].csv"), str(tmp_path / "c.csv")])
    assert texts_of(apart) == ["a", "b", "c"]


@pytest.mark.parametrize("write", [parquet, arrow])
def test_a_column_that_cannot_be_used_is_named(tmp_path, write):
    """A table without the column, with one that holds no text, or without the filter's is rejected as a whole."""
    ids = put(tmp_path, f"b.{write.__name__}", write([{"input_ids": [1], "number": 1}]))
    assert "token ids in 'input_ids': set data.kind=tokens" in read_all(FilesDataSource([ids]))[0].reason
    path = put(tmp_path, f"a.{write.__name__}", write([{"body": "x", "number": 1}]))
    for options, problem in (
        ({}, "no column 'text', only 'body', 'number': set data.text_field"),
        ({"text_field": "number"}, "'number' holds int64, not text: set data.text_field"),
        ({"text_field": "body", "filter": {"language": "de"}}, "no column 'language', only"),
    ):
        (bad,) = read_all(FilesDataSource([path], **options))
        assert path in bad.reason
        assert problem in bad.reason
        assert bad.end is None


@pytest.mark.parametrize(
    "kind",
    [
        "string",
        "large_string",
        "string_view",
        "dictionary",
        "binary",
        "large_binary",
        "binary_view",
        "bytes of a dictionary",
    ],
)
def test_texts_of_every_type_are_read(tmp_path, kind):
    """Strings of any size, those of a dictionary, and bytes that are UTF-8 are text."""
    types = {
        "dictionary": pa.dictionary(pa.int32(), pa.string()),
        "bytes of a dictionary": pa.dictionary(pa.int32(), pa.binary()),
    }
    column = pa.array(["one", "two", "one"]).cast(types.get(kind) or getattr(pa, kind)())
    with pa.ipc.new_file(tmp_path / "a.arrow", pa.schema([("text", column.type)])) as writer:
        writer.write_batch(pa.record_batch([column], ["text"]))
    assert texts_of(FilesDataSource([str(tmp_path)])) == ["one", "two", "one"]


@pytest.mark.parametrize("write", [parquet, arrow])
def test_a_bad_text_of_a_table_is_named(tmp_path, write):
    """A text that is missing, not UTF-8 or too long is rejected by its row, and the next ones are read."""
    texts = pa.array([b"good", None, b"f\xfcr", b"x" * 30, b"too"]).cast(pa.binary())
    column = pa.StringArray.from_buffers(len(texts), *texts.buffers()[1:], texts.buffers()[0])
    table = pa.table({"text": column})
    path = tmp_path / f"a.{write.__name__}"
    if write is parquet:
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    first, *bad, last = read_all(FilesDataSource([str(path)], limits=Limits(record_bytes=20)))
    assert (first.text, last.text) == ("good", "too")
    assert [item.start for item in bad] == [1, 2, 3]
    assert [f"row {item.start}" in item.reason for item in bad] == [True] * 3
    for item, problem in zip(bad, ["holds null", "not UTF-8", "longer than 20 bytes"], strict=True):
        assert problem in item.reason


@pytest.mark.parametrize("unit_bytes", [1, 1 << 20])
@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.feather"])
def test_a_damaged_table_is_named(tmp_path, name, unit_bytes):
    """A table that ends early is rejected as a whole, or from where it cannot be read on."""
    limits = Limits(unit_bytes=unit_bytes)
    for content in (b"no table at all", FILES[name][:-300]):
        path = put(tmp_path, name, content)
        (unit,) = (source := FilesDataSource([path], limits=limits)).units()
        *_, bad = source.read(unit)
        assert path in bad.reason
        assert "truncated or damaged" in bad.reason
        assert bad.end is None


def test_a_table_in_an_archive_says_what_to_do(tmp_path):
    """Parquet inside gzip cannot be entered anywhere, so it is refused with a remedy."""
    with pytest.raises(DataError, match=r"a\.parquet\.gz is parquet inside gz, .*: unpack it"):
        FilesDataSource([put(tmp_path, "a.parquet.gz", gzip.compress(FILES["a.parquet"]))]).units()


def test_the_package_for_tables_is_named(tmp_path, monkeypatch):
    """Where pyarrow is missing the error says which extra brings it."""
    monkeypatch.setattr("holdfast.adapters.data_source.file_reader.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r'pip install "holdfast-lm\[parquet\]"'):
        FilesDataSource([put(tmp_path, "a.parquet", FILES["a.parquet"])]).units()


@pytest.mark.parametrize("name", FILES)
def test_a_file_in_another_place_gives_the_same_texts(tmp_path, name):
    """Files that are no local ones, here those in an archive, are read in ranges, and their parts as well."""
    with zipfile.ZipFile(tmp_path / "corpus.zip", "w") as archive:
        archive.writestr(f"folder/{name}", FILES[name])
    source = FilesDataSource([f"zip://folder::{tmp_path}/corpus.zip"], limits=Limits(unit_bytes=400))
    assert texts_of(source) == TEXTS
    assert all(unit.name.startswith(f"zip://folder/{name}") for unit in source.units())
