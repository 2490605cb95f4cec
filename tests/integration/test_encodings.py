"""Text in any encoding, with or without a byte order mark, and tables with any delimiter give the same documents."""

from __future__ import annotations

import codecs
import gzip
import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.formats.records import Limits, Reading
from holdfast.adapters.data_source.huggingface import HuggingfaceDataSource
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.data_files import FIRST_RULES
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.data_source import Document, Rejected
from tests.support.reading import read_all, texts_of

TEXTS = ["für 四", 'a "quoted" text', "last, one"]
TABLE = '"text","id"\r\n' + "".join('"' + text.replace('"', '""') + '","1"\r\n' for text in TEXTS)
LINES = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in TEXTS)
CONTENTS = {
    "a.csv": TABLE,
    "b.tsv": TABLE.replace('","', '"\t"'),
    "c.jsonl": LINES,
    "d.json": f"[{','.join(LINES.splitlines())}]",
    "e.json": LINES,
}
MARKED = {
    "UTF-8": lambda text: codecs.BOM_UTF8 + text.encode(),
    "UTF-16": lambda text: text.encode("utf-16"),
    "UTF-16 of another machine": lambda text: codecs.BOM_UTF16_BE + text.encode("utf-16-be"),
    "UTF-32": lambda text: text.encode("utf-32"),
}


def source_of(path, name, content, **reading):
    (path / name).write_bytes(content)
    return FilesDataSource([str(path / name)]).with_reading(Reading(**reading))


@pytest.mark.parametrize("marked", MARKED)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("name", CONTENTS)
def test_a_byte_order_mark_tells_the_encoding(tmp_path, name, pack, marked):
    """Whatever a file with a mark holds is read in its encoding, and reading resumes after any document."""
    suffix = "" if pack is bytes else ".gz"
    source = source_of(tmp_path, f"{name}{suffix}", pack(MARKED[marked](CONTENTS[name])))
    assert texts_of(source) == TEXTS
    (unit,) = source.units()
    documents = read_all(source)
    for number, document in enumerate(documents):
        assert list(source.read(unit, document.end)) == documents[number + 1 :]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16-le", "shift_jis"])
def test_the_encoding_may_be_named(tmp_path, encoding):
    """An encoding that no mark tells is named, however large the file is, and changes the fingerprint."""
    texts = ["naïve café €"] * 300 if encoding == "cp1252" else ["四角"] * 300
    content = "".join(f'{{"text": "{text}"}}\n' for text in texts).encode(encoding)
    (tmp_path / "a.jsonl").write_bytes(content)
    plain = FilesDataSource([str(tmp_path / "a.jsonl")], limits=Limits(unit_bytes=100))
    named = plain.with_reading(Reading(encoding=encoding))
    assert texts_of(named) == texts
    assert named.fingerprint() != plain.fingerprint()
    assert "data.encoding" in read_all(plain)[0].reason or encoding == "utf-16-le"


def test_what_does_not_decode_is_one_bad_record(tmp_path):
    """A byte that the encoding does not have rejects its record, and the others are read."""
    good, bad, more = read_all(source_of(tmp_path, "a.csv", b"text\na\x80\nb\x81\nc\xe9\n", encoding="cp1252"))
    assert (good.text, more.text) == ("a€", "cé")
    assert isinstance(bad, Rejected)
    assert "is not cp1252" in bad.reason


def test_lines_may_end_with_carriage_returns_alone(tmp_path):
    """A table of an old spreadsheet program is read as any other."""
    assert texts_of(source_of(tmp_path, "a.csv", b"text,id\rone,1\rtwo,2\r")) == ["one", "two"]


@pytest.mark.parametrize("quote", ["", '"'])
@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_another_delimiter_is_found_by_the_columns_and_said(tmp_path, delimiter, quote):
    """A header that has the column only with another delimiter decides, in quotes too, and a remark says so."""
    content = f"{quote}id,n{quote}{delimiter}{quote}text{quote}\n1{delimiter}one, two\n".encode()
    source = source_of(tmp_path, "a.csv", content)
    assert texts_of(source) == ["one, two"]
    assert f"are divided by {delimiter!r}: 'id,n', 'text'" in source.remarks()[0].sentence


def test_the_delimiter_and_the_quote_may_be_named(tmp_path):
    """What is named is not guessed, and without quotes a quote is a character."""
    content = b"text:id\n\"one:1\n'a:b':2\n"
    first, second = read_all(source_of(tmp_path, "a.csv", content, delimiter=":", quote=""))
    assert first.text == '"one'
    assert isinstance(second, Rejected)
    assert texts_of(source_of(tmp_path, "a.csv", content.replace(b'"', b""), delimiter=":", quote="'")) == [
        "one",
        "a:b",
    ]


def test_a_table_with_the_usual_delimiter_is_not_guessed(tmp_path):
    """The usual delimiter is taken if it gives the column, whatever else the header holds."""
    source = source_of(tmp_path, "a.csv", b"text,a;b;c;d\none,1\n")
    assert texts_of(source) == ["one"]
    assert "divided" not in "".join(remark.sentence for remark in source.remarks())


@pytest.mark.parametrize("value", ["encoding=ut8", "encoding=base64", "delimiter=ab", "quote=ä"])
def test_settings_that_name_nothing_are_refused(value):
    """An unknown encoding and a delimiter of several characters are refused by their setting."""
    with pytest.raises(ConfigurationError, match=f"data.{value.partition('=')[0]}"):
        load_settings([], ["data.path=x", f"data.{value}"], {})


def test_a_former_run_reads_a_marked_header_as_before(tmp_path):
    """By the first rules the quotes of the first column stay in its name behind a mark."""
    content = codecs.BOM_UTF8 + b'"id","text"\n1,one\n'
    former = source_of(tmp_path, "a.csv", content, rules=FIRST_RULES)
    assert texts_of(former.with_fields(['"id"'])) == ["one"]
    assert former.fingerprint() != source_of(tmp_path, "a.csv", content).fingerprint()


def test_each_text_file_of_a_folder_is_one_document(tmp_path):
    """A file up to data.document_bytes is whole, packed or not; a larger one is cut, which is said."""
    text = "a line of text\n" * 10_000
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.md.gz").write_bytes(gzip.compress(text.encode()))
    source = FilesDataSource([str(tmp_path)])
    assert texts_of(source) == [text, text]
    assert not source.remarks()
    for unit in source.units():
        (document,) = source.read(unit)
        assert not list(source.read(unit, document.end))
    cut = source.with_reading(Reading(document_bytes=100_000))
    assert len(texts_of(cut)) == 6
    assert "a.txt" in cut.remarks()[0].sentence
    assert cut.fingerprint() != source.fingerprint()
    former = source.with_reading(Reading(FIRST_RULES))
    assert texts_of(former) == texts_of(cut)
    assert len({source.fingerprint(), cut.fingerprint(), former.fingerprint()}) == 3
    assert len(texts_of(FilesDataSource([str(tmp_path / "a.txt")]))) == 3


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_the_text_may_be_a_member_of_an_object(tmp_path, name):
    """``a.b`` is b of a, or a field of this very name; a record with both is refused."""
    records = [{"a": {"b": "inner"}}, {"a.b": "outer"}, {"a.b": "outer", "a": {"b": "inner"}}, {"a": {"c": "none"}}]
    content = json.dumps(records) if name == "a.json" else "".join(json.dumps(each) + "\n" for each in records)
    (tmp_path / name).write_text(content)
    inner, outer, both, bad = read_all(FilesDataSource([str(tmp_path / name)], text_field="a.b"))
    assert (inner.text, outer.text) == ("inner", "outer")
    assert "there is also 'b' within 'a'" in both.reason
    assert "'a.b' is missing" in bad.reason


def test_a_truth_value_of_a_filter_is_a_text_in_tables(tmp_path):
    """Tables hold text alone, so true is any of its spellings there."""
    (tmp_path / "a.csv").write_text("text,ok,n\none,true,1\ntwo,False,1\nthree,True,2\nfour,TRUE,1\n")
    chosen = FilesDataSource([str(tmp_path / "a.csv")], filter={"ok": True, "n": 1})
    assert texts_of(chosen) == ["one", "four"]
    assert texts_of(FilesDataSource([str(tmp_path / "a.csv")], filter={"ok": False})) == ["two"]


def test_an_array_in_a_file_of_lines_says_what_to_set(tmp_path):
    """A file that is named as lines and holds an array is refused with the format to set."""
    assert "data.format=json" in read_all(source_of(tmp_path, "a.jsonl", b'[\n{"text": "a"}]\n'))[0].reason
    assert texts_of(FilesDataSource([str(tmp_path / "a.jsonl")], format="json")) == ["a"]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "saved"])
def test_the_text_may_be_a_member_of_a_column(tmp_path, kind):
    """``a.b`` is b of the structs in a, at any depth; null is no text, and a column of this name as well is refused."""
    rows = [{"b": "one", "c": {"d": "deep"}}, None, {"b": None, "c": None}, {"b": "four", "c": {"d": "deeper"}}]
    bytes_of_text = pa.array([b"x", b"\xff", b"y", b"z"])
    nested = pa.table({"id": [1, 2, 3, 4], "a": rows, "e": pa.StructArray.from_arrays([bytes_of_text], ["f"])})
    found = read_all(nested_in(nested, kind, tmp_path / "one", text_field="a.b"))
    assert [each.text for each in found if isinstance(each, Document)] == ["one", "four"]
    assert [each.start for each in found if isinstance(each, Rejected)] == [1, 2]
    (last,) = read_all(nested_in(nested, kind, tmp_path / "two", text_field="a.c.d", filter={"id": 4}))
    assert last.text == "deeper"
    (bad,) = (
        each
        for each in read_all(nested_in(nested, kind, tmp_path / "e", text_field="e.f"))
        if isinstance(each, Rejected)
    )
    assert "row 1: the text is not UTF-8" in bad.reason
    (named,) = read_all(
        nested_in(pa.table({"a.b": ["own"], "a": [{"b": "inner"}]}), kind, tmp_path / "three", text_field="a.b")
    )
    assert "there is also 'b' within 'a'" in named.reason
    for field, problem in (("a.x", "no column 'a.x'"), ("id.x", "no column 'id.x'"), ("a.c", "holds struct<")):
        (bad,) = read_all(nested_in(nested, kind, tmp_path / field, text_field=field))
        assert problem in bad.reason


def nested_in(table, kind, path, **fields):
    path.mkdir()
    if kind == "saved":
        datasets.Dataset(table).save_to_disk(str(path / "all"))
        return HuggingfaceDataSource(str(path / "all"), **fields)
    if kind == "parquet":
        pq.write_table(table, path / "all.parquet")
    else:
        with pa.ipc.new_file(str(path / "all.arrow"), table.schema) as file:
            file.write_table(table)
    return FilesDataSource([str(path / f"all.{kind}")], **fields)
