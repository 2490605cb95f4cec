"""A file of any dialect holds the texts that pandas, pyarrow and datasets find in it, or its bad records are named."""

from __future__ import annotations

import codecs
import csv
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.formats.records import Limits, Reading
from holdfast.ports.data_source import Rejected
from tests.support.reading import read_all, texts_of

pd = pytest.importorskip("pandas")
datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.slow

TEXTS = [
    "one, two; three\tfour|five",
    'a "quoted" word, and "two"',
    "two lines\nand an empty one\n\nend",
    "für 四 🙂 \u2028 \x85 \x0b",
    " blanks around ",
    "NA",
    "null",
    "1,000.50",
    "it's",
    "back\\slash \\n \\",
    "#no comment",
    "x" * 200_000,
    *(f"text {number}" for number in range(40)),
]
SIMPLE = ["naïve café €", "plain", "two\nlines", "last, one"]
FRAME = pd.DataFrame({"id": range(len(TEXTS)), "text": TEXTS, "kind": ["a", None] * (len(TEXTS) // 2)})
ROWS = [{"text": text, "id": number} for number, text in enumerate(TEXTS)]
ALL, MINIMAL, NON_NUMERIC = csv.QUOTE_ALL, csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC
LITERAL = {"keep_default_na": False}
MARK = codecs.BOM_UTF8

# how pandas writes a table, how it reads it, and how this reads it
TABLES = {
    "as pandas writes": ("a.csv", {}, {}),
    "carriage returns and line feeds": ("a.csv", {"lineterminator": "\r\n"}, {}),
    "quotes everywhere": ("a.csv", {"quoting": ALL}, {}),
    "quotes but for numbers": ("a.csv", {"quoting": NON_NUMERIC}, {}),
    "semicolons": ("a.csv", {"sep": ";"}, {}),
    "semicolons that are named": ("a.csv", {"sep": ";"}, {"delimiter": ";"}),
    "bars": ("a.csv", {"sep": "|"}, {}),
    "tabs": ("a.tsv", {"sep": "\t"}, {}),
    "tabs in a csv file": ("a.csv", {"sep": "\t"}, {}),
    "commas in a tsv file": ("a.tsv", {"sep": ","}, {}),
    "colons that are named": ("a.csv", {"sep": ":"}, {"delimiter": ":"}),
    "single quotes": ("a.csv", {"quotechar": "'"}, {"quote": "'"}),
    "single quotes everywhere": ("a.csv", {"quotechar": "'", "quoting": ALL, "sep": ";"}, {"quote": "'"}),
    "a byte order mark": ("a.csv", {"encoding": "utf-8-sig"}, {}),
    "a byte order mark and quotes": ("a.csv", {"encoding": "utf-8-sig", "quoting": ALL}, {}),
    "UTF-16": ("a.csv", {"encoding": "utf-16"}, {}),
    "UTF-32 with tabs": ("a.tsv", {"encoding": "utf-32", "sep": "\t"}, {}),
    "UTF-16 without a mark": ("a.csv", {"encoding": "utf-16-le"}, {"encoding": "utf-16-le"}),
    "GB 18030": ("a.csv", {"encoding": "gb18030"}, {"encoding": "gb18030"}),
    "gzip": ("a.csv.gz", {}, {}),
    "bzip2 and quotes everywhere": ("a.csv.bz2", {"quoting": ALL}, {}),
    "semicolons and quotes everywhere": ("a.csv", {"sep": ";", "quoting": ALL}, {}),
    "commas and quotes everywhere in a tsv file": ("a.tsv", {"sep": ",", "quoting": ALL}, {}),
    "xz and semicolons": ("a.csv.xz", {"sep": ";"}, {}),
}
# tables that are written by hand, and how pandas reads what is not usual of them
ODD_TABLES = {
    "no line end": (b"id,text\n1,one\n2,two", {}),
    "empty lines": (b"id,text\n\n1,one\n\n\n2,two\n\n", {}),
    "carriage returns alone": (b"id,text\r1,one\r2,two\r", {}),
    "mixed line ends": (b"id,text\r\n1,one\n2,two\r\n", {}),
    "line ends of both kinds in quotes": (b'id,text\r\n1,"one\r\nand\nmore"\r\n2,two\r\n', {}),
    "a column without a name": (b",text\n1,one\n2,two\n", {}),
    "a delimiter behind each row": (b"text,id,\none,1,\ntwo,2,\n", {}),
    "the same name twice": (b"text,text\none,other\ntwo,more\n", {}),
    "one column": (b'text\none\n"two, three"\n', {}),
    "quotes in the middle": (b'id,text\n1,o"n"e\n2,5" disk\n', {}),
    "blanks behind commas": (b"id, other,text\n1, x, one\n", {}),
    "no quotes": (b'id|text\n1|"one\n2|two"\n', {"quote": ""}),
    "Windows": ("id;text\r\n1;naïve €\r\n".encode("cp1252"), {"encoding": "cp1252"}),
    "Shift JIS": ("id,text\n1,四角\n".encode("shift_jis"), {"encoding": "shift_jis"}),
    "a mark in UTF-16 of another machine": (codecs.BOM_UTF16_BE + "id,text\n1,四\n".encode("utf-16-be"), {}),
    "a header in quotes": (b'"id","text"\n1,one\n', {}),
    "a zero byte": (b"id,text\n1,o\0ne\n", {}),
}
LINES = {
    "as pandas writes": lambda: FRAME.to_json(orient="records", lines=True).encode(),
    "letters as they are": lambda: FRAME.to_json(orient="records", lines=True, force_ascii=False).encode(),
    "carriage returns and line feeds": lambda: (
        FRAME.to_json(orient="records", lines=True).replace("\n", "\r\n").encode()
    ),
    "no line end": lambda: FRAME.to_json(orient="records", lines=True).rstrip().encode(),
    "empty lines": lambda: FRAME.to_json(orient="records", lines=True).replace("\n", "\n \n\n").encode(),
    "a byte order mark": lambda: MARK + FRAME.to_json(orient="records", lines=True, force_ascii=False).encode(),
    "UTF-16": lambda: FRAME.to_json(orient="records", lines=True, force_ascii=False).encode("utf-16"),
    "UTF-32": lambda: FRAME.to_json(orient="records", lines=True, force_ascii=False).encode("utf-32"),
    "blanks": lambda: b"".join(
        b"\t " + json.dumps(row, indent=None, separators=(" , ", " : ")).encode() + b" \n" for row in ROWS
    ),
    "an array": lambda: FRAME.to_json(orient="records").encode(),
    "an array over lines": lambda: json.dumps(ROWS, indent=2, ensure_ascii=False).encode(),
    "an array with a mark": lambda: MARK + json.dumps(ROWS).encode() + b"\n\n",
    "an array in UTF-16": lambda: json.dumps(ROWS, ensure_ascii=False).encode("utf-16"),
    "records of different shapes": lambda: b"".join(
        json.dumps({"text": text, f"k{number % 5}": [number, {"a": None}]}).encode() + b"\n"
        for number, text in enumerate(TEXTS)
    ),
    "the same name twice": lambda: b"".join(
        b'{"text": "no", "text": %s}\n' % json.dumps(text).encode() for text in TEXTS
    ),
    "numbers that are none": lambda: b"".join(
        b'{"n": NaN, "m": -Infinity, "b": %d, "text": %s}\n' % (1 << 80, json.dumps(text).encode()) for text in TEXTS
    ),
    "members of gzip": lambda: b"".join(gzip.compress(json.dumps(row).encode() + b"\n") for row in ROWS),
}
COLUMNS = {
    "Snappy": {"compression": "snappy"},
    "LZ4": {"compression": "lz4", "row_group_size": 7},
    "Zstandard by column": {"compression": {"text": "zstd", "id": "gzip", "kind": "none"}},
    "plain": {"use_dictionary": False, "column_encoding": {"text": "PLAIN"}},
    "delta of whole texts": {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}},
    "a dictionary that overflows": {"dictionary_pagesize_limit": 64, "data_page_size": 200},
    "version 1.0": {"version": "1.0"},
    "version 2.4 and an index of pages": {"version": "2.4", "write_page_index": True, "row_group_size": 5},
    "a bloom filter": {"write_statistics": False, "sorting_columns": [pq.SortingColumn(0)]},
    "without Arrow's schema": {"store_schema": False},
}


def source_of(path, content, **reading):
    path.write_bytes(content)
    return FilesDataSource([str(path)], limits=Limits(unit_bytes=4000)).with_reading(Reading(**reading))


@pytest.mark.parametrize("dialect", TABLES)
def test_a_table_of_text_holds_what_pandas_finds(tmp_path, dialect):
    """Any delimiter, quote, line end, encoding and archive: the texts are those that pandas reads and that it wrote."""
    name, how, reading = TABLES[dialect]
    FRAME.to_csv(tmp_path / name, index=False, **how)
    options = {key: value for key, value in how.items() if key in ("sep", "quotechar", "encoding")}
    expected = pd.read_csv(tmp_path / name, **options, **LITERAL)["text"].tolist()
    source = FilesDataSource([str(tmp_path / name)]).with_reading(Reading(**reading))
    assert texts_of(source) == expected == TEXTS


@pytest.mark.parametrize("dialect", ODD_TABLES)
def test_an_odd_table_of_text_holds_what_pandas_finds(tmp_path, dialect):
    """What other programs write by hand or by mistake is read as pandas reads it."""
    content, reading = ODD_TABLES[dialect]
    source = source_of(tmp_path / "a.csv", content, **reading)
    names = {"encoding": "encoding", "delimiter": "sep"}
    options = {names[key]: value for key, value in reading.items() if key in names}
    if reading.get("quote") == "":
        options |= {"quoting": csv.QUOTE_NONE}
    options.setdefault("encoding", "utf-16" if content.startswith(codecs.BOM_UTF16_BE) else "utf-8")
    header = content.decode(options["encoding"]).splitlines()[0]
    options["sep"] = (
        next(sign for sign in "|;," if sign in header) if "," in header or "|" in header or ";" in header else ","
    )
    frame = pd.read_csv(tmp_path / "a.csv", index_col=False, **options, **LITERAL)
    assert texts_of(source) == frame["text"].tolist()


@pytest.mark.parametrize("dialect", LINES)
def test_records_hold_what_pandas_finds(tmp_path, dialect):
    """Lines and arrays of JSON in any layout and encoding hold the texts that were written."""
    content = LINES[dialect]()
    name = "a.jsonl.gz" if content.startswith(b"\x1f\x8b") else "a.json"
    found = texts_of(source_of(tmp_path / name, content))
    assert found == TEXTS


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_records_are_those_of_datasets(tmp_path, name):
    """Texts, empty ones left out, are those that datasets finds."""
    texts = [*TEXTS, "", "end"]
    frame = pd.DataFrame({"text": texts})
    frame.to_json(tmp_path / name, orient="records", lines=name == "a.jsonl")
    kept = str(tmp_path / "cache")
    expected = datasets.load_dataset("json", data_files=str(tmp_path / name), split="train", cache_dir=kept)["text"]
    assert texts_of(FilesDataSource([str(tmp_path / name)])) == [text for text in expected if text.strip()]


@pytest.mark.parametrize("dialect", COLUMNS)
def test_columns_hold_what_pyarrow_finds(tmp_path, dialect):
    """Any compression, encoding and version of Parquet holds the texts that were written, of a struct too."""
    table = pa.Table.from_pandas(FRAME).append_column("a", pa.array([{"b": text} for text in TEXTS]))
    pq.write_table(table, tmp_path / "a.parquet", **COLUMNS[dialect])
    found = pq.read_table(tmp_path / "a.parquet")
    for field, expected in (("text", found["text"].to_pylist()), ("a.b", [row["b"] for row in found["a"].to_pylist()])):
        source = FilesDataSource([str(tmp_path / "a.parquet")], text_field=field, limits=Limits(unit_bytes=4000))
        assert texts_of(source) == expected == TEXTS


# files of which another program reads the first record with an option or by luck, or refuses them all
BAD = {
    "backslashes before quotes": ("a.csv", b'id,text\n1,"say \\"hi\\", they"\n2,two\n', "repair its quotes"),
    "a comma without quotes": ("a.csv", b"id,text\n1,one, more\n2,two\n", "3 fields and the header 2"),
    "a comma at the end": ("a.csv", b"id,text\n1,one,\n2,two\n", "3 fields and the header 2"),
    "text behind quotes": ("a.csv", b'id,text\n1,"one" more\n2,two\n', "repair its quotes"),
    "a line of blanks": ("a.csv", b"id,text\n  \n2,two\n", "1 fields and the header 2"),
    "a comment": ("a.csv", b"id,text\n# a comment\n2,two\n", "1 fields and the header 2"),
    "null": ("a.jsonl", b'{"text": null}\n{"text": "two"}\n', "holds null, not text"),
    "a number": ("a.jsonl", b'{"text": 1}\n{"text": "two"}\n', "holds a number, not text"),
    "a comma behind the last member": ("a.jsonl", b'{"text": "one",}\n{"text": "two"}\n', "is not JSON"),
    "single quotes": ("a.jsonl", b"{'text': 'one'}\n{\"text\": \"two\"}\n", "is not JSON"),
    "half of a pair": ("a.jsonl", b'{"text": "\\ud83d"}\n{"text": "two"}\n', "half of a surrogate pair"),
    "two records in a line": ("a.jsonl", b'{"text": "a"}{"text": "b"}\n{"text": "two"}\n', "is not JSON"),
    "a record separator": ("a.jsonl", b'\x1e{"text": "one"}\n{"text": "two"}\n', "is not JSON"),
}
REFUSED = {
    "a line for Excel": ("a.csv", b"sep=;\nid;text\n1;one\n", "there is no column 'text', only 'sep=', ''"),
    "no header": ("a.csv", b"1,one\n2,two\n", "there is no column 'text', only '1', 'one'"),
    "another header in quotes": ("a.csv", b'"id";"body"\n"1";"one"\n', "there is no column 'text', only 'id', 'body'"),
    "quotes that are open": ("a.csv", b'"id"x,"text\n1,one\n', "not a header of column names"),
    "lists by column": ("a.json", b'{"text": ["one", "two"]}', "holds a list, not text"),
    "a record over lines": (
        "a.json",
        b'{\n"text": "one"\n}\n',
        "neither a JSON array of records nor an object on each",
    ),
}


@pytest.mark.parametrize("dialect", BAD)
def test_a_record_that_others_read_otherwise_is_named(tmp_path, dialect):
    """It is rejected for what is wrong with it, and the one behind it is read."""
    name, content, problem = BAD[dialect]
    bad, *others = read_all(source_of(tmp_path / name, content))
    assert isinstance(bad, Rejected)
    assert problem in bad.reason
    assert [each.text for each in others] == ["two"]


@pytest.mark.parametrize("dialect", REFUSED)
def test_a_file_that_others_read_otherwise_is_refused(tmp_path, dialect):
    """Nothing of it is read, and its only message says what is wrong with it."""
    name, content, problem = REFUSED[dialect]
    (bad,) = read_all(source_of(tmp_path / name, content))
    assert isinstance(bad, Rejected)
    assert problem in bad.reason
