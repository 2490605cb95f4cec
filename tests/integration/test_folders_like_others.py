"""A folder holds the documents that other libraries find in it, and what is not read of it is named and counted."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.huggingface import HuggingfaceDataSource
from tests.support.reading import texts_of

pd = pytest.importorskip("pandas")
datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.slow

SHARDS = ["train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"]
DEFAULT = "- config_name: default\n  data_files:\n  - split: train\n    path: data/train-*\n"
SPLITS = "- config_name: default\n  data_files:\n  - split: train\n    path: one/*\n  - split: test\n    path: two/*\n"
LANGUAGES = "- config_name: en\n  data_files: one/*.jsonl\n- config_name: de\n  data_files: two/*.jsonl\n"


def card(configs=""):
    return "README.md", f"---\nlicense: mit\n{configs and 'configs:'}\n{configs}---\n# A card\n".encode()


# files of records by their names, and files that are written as they are; both libraries read the same of each folder
SAME = {
    "one file": ["a.jsonl"],
    "several files": ["b.jsonl", "a.jsonl", "c.jsonl"],
    "names with numbers": [f"part-{number}.jsonl" for number in range(12)],
    "nested folders": ["a/b/c.jsonl", "a/d.jsonl", "e.jsonl", "a.b/f.jsonl"],
    "hidden files and folders": ["a.jsonl", ".hidden.jsonl", ".cache/huggingface/b.jsonl", ".a/c.jsonl"],
    "a card and a license": ["data.jsonl", card(), ("LICENSE", b"MIT"), (".gitattributes", b"x")],
    "a license as text": ["data.jsonl", "more.jsonl", ("LICENSE.txt", b"MIT")],
    "a card of a configuration": [*(f"data/{shard}.parquet" for shard in SHARDS), card(DEFAULT)],
    "splits by file name": ["train.jsonl", "test.jsonl", "validation.jsonl"],
    "splits by words in file names": ["my-train-data.csv", "my_test_file.csv", "dev.csv"],
    "splits by numbered file names": ["train1.jsonl", "train2.jsonl", "2020-test.1.jsonl"],
    "splits by folder": ["train/a.jsonl", "train/b.jsonl", "test/a.jsonl", "val/c.jsonl"],
    "splits by folders above others": ["all/training/x/a.parquet", "all/eval/y/a.parquet"],
    "shards of the Hub": [f"data/{shard}.parquet" for shard in SHARDS],
    "shards of the Hub with hashes": [f"data/{shard}-0123456789abcdef.parquet" for shard in SHARDS],
    "splits of packed files": ["train.jsonl.gz", "test.jsonl.gz"],
    "packed lines": ["a.jsonl.gz", "b.jsonl.bz2", "c.jsonl.xz", "d.jsonl"],
    "packed arrays": ["a.json.gz", "b.json.xz", "c.json"],
    "packed tables of text": ["a.csv.gz", "b.csv.bz2", "c.csv"],
    "arrays and lines": ["a.json", "b.jsonl", "c.ndjson"],
    "tables with tabs": ["a.tsv", "b.tsv"],
    "columns": ["a.parquet", "b.parquet", "c/d.parquet"],
    "Arrow files and streams": ["a.arrow", "b.stream.arrow"],
    "spaces, other letters and signs": ["a b.jsonl", "für 四.jsonl", "c'd\".jsonl", "e%20f.jsonl", "g#h:i?*.jsonl"],
    "brackets": ["a[1].jsonl", "b(2).jsonl", "{c}.jsonl", "[d]/e.jsonl"],
    "partitions of Hive": ["lang=en/part-0.parquet", "lang=de/part-0.parquet"],
    "output of Spark": ["part-00000-1f2e.snappy.parquet", ("_SUCCESS", b""), (".part-00000.crc", b"crc")],
    "a program": ["data.jsonl", "more.jsonl", ("make.py", b"print()\n")],
    "configurations": ["data.jsonl", ("config.json", b'{\n"a": 1\n}'), ("dataset_infos.json", b'{"default": {}}')],
    "an empty file and an empty array": ["a.json", ("b.jsonl", b""), ("c.json", b"[]")],
    "a backup": ["a.jsonl", ("a.jsonl~", b"{}")],
}
# folders that are read as a whole where the other library reads a part of them or nothing: what is said of that
WHOLE = {
    "several formats": (["a.jsonl", "b.csv", "c.parquet"], "files of several formats are read: 1 csv, 1 jsonl, 1 parq"),
    "packed beside plain": (["a.jsonl", "a.jsonl.gz"], "files of several formats are read: 1 jsonl, 1 jsonl.gz"),
    "commas and tabs": (["a.csv", "b.tsv"], "files of several formats are read: 1 csv, 1 tsv"),
    "a file of no split": (["train.jsonl", "more.jsonl"], "1 file of no split is read beside those of the split train"),
    "a folder of no split": (
        ["data/train-00000-of-00001.parquet", "raw/a.parquet"],
        "1 file of no split is read beside those of the split train: raw/a.parquet",
    ),
    "splits of other names": (
        [f"data/{name}-00000-of-00001.parquet" for name in ("sft", "rl")],
        r"several sets of shards are read together: data/rl-\*-of-00001.parquet, data/sft-\*-of-00001.parquet",
    ),
    "an earlier export": (
        [f"train-{number:05}-of-{count:05}.parquet" for count in (1, 2) for number in range(count)],
        "several sets of shards are read together",
    ),
    "a card with other splits": (["one/a.jsonl", "two/b.jsonl", card(SPLITS)], "README.md names other files to train"),
    "a card of languages": (
        ["one/a.jsonl", "two/b.jsonl", card(LANGUAGES)],
        r"by configuration \(de, en\), and is not",
    ),
    "test files alone": (["test.jsonl", "test2.jsonl"], "2 files in .* are read, as no file is called train"),
    "upper-case suffixes": (["A.JSONL", "B.Json"], ""),
    "Zstandard": (["a.jsonl.zst", "b.jsonl.zstd"], ""),
    "other columns": (["a.jsonl", ("b.jsonl", b'{"text": "b", "more": {"c": 1}}\n{"other": 1, "text": "d"}\n')], ""),
    "columns in another order": (["a.csv", ("b.csv", b"id,text\n1,b\n")], ""),
}


def texts_in(name):
    return [f"{name} {number} für 四 \u2028 'one', \"two\"\nthree" for number in range(len(name) % 3 + 2)]


def write(path, texts):
    """Write records in the format of the suffixes of ``path``, by another library."""
    table = pa.table({"text": texts, "id": range(len(texts))})
    suffixes = [suffix.lower() for suffix in path.suffixes]
    path.parent.mkdir(parents=True, exist_ok=True)
    if ".parquet" in suffixes:
        pq.write_table(table, path)
    elif ".arrow" in suffixes:
        with (pa.ipc.new_stream if ".stream" in suffixes else pa.ipc.new_file)(str(path), table.schema) as file:
            file.write_table(table)
    elif ".csv" in suffixes or ".tsv" in suffixes:
        table.to_pandas().to_csv(path, sep="\t" if ".tsv" in suffixes else ",", index=False)
    else:
        text = table.to_pandas().to_json(orient="records", lines=".json" not in suffixes)
        packing = {".zst": "zstd", ".zstd": "zstd", ".gz": "gzip", ".bz2": "bz2"}.get(suffixes[-1])
        if packing:
            with pa.output_stream(path, compression=packing) as file:
                file.write(text.encode())
        else:
            table.to_pandas().to_json(path, orient="records", lines=".json" not in suffixes)


def read(path):
    """Return the texts of the records in ``path`` as pandas or pyarrow finds them."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if ".parquet" in suffixes:
        return pd.read_parquet(path)["text"].tolist()
    if ".csv" in suffixes or ".tsv" in suffixes:
        return pd.read_csv(path, sep="\t" if ".tsv" in suffixes else ",")["text"].tolist()
    with pa.input_stream(path, compression="zstd" if suffixes[-1] in (".zst", ".zstd") else "detect") as file:
        content = file.read()
    lines = json.loads(content) if ".json" in suffixes else map(json.loads, content.decode().split("\n")[:-1])
    return [record["text"] for record in lines]


def make(folder, files):
    for file in files:
        if isinstance(file, str):
            write(folder / file, texts_in(file))
        else:
            (folder / file[0]).parent.mkdir(parents=True, exist_ok=True)
            (folder / file[0]).write_bytes(file[1])


def found_by_datasets(folder, tmp_path):
    return list(datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path / "cache"))["text"])


def visible(folder):
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    return [folder / name for name in names if not any(part.startswith(".") for part in name.parts)]


def check_counted(source, folder):
    """Check that each file is read, or counted in a remark."""
    read_files = {unit.name for unit in source.units() if unit.size}
    assert len(visible(folder)) == len(read_files) + sum(remark.unused for remark in source.remarks())


@pytest.mark.parametrize("shape", SAME)
def test_a_folder_holds_what_datasets_finds_in_it(tmp_path, shape):
    """The same documents in the same order, and each file is read or counted."""
    folder = tmp_path / "folder"
    make(folder, SAME[shape])
    expected = found_by_datasets(folder, tmp_path)
    source = FilesDataSource([str(folder)])
    assert texts_of(source) == expected
    assert Counter(texts_of(HuggingfaceDataSource(str(folder)))) == Counter(expected)
    check_counted(source, folder)
    assert "names other files" not in "".join(remark.sentence for remark in source.remarks())


@pytest.mark.parametrize("shape", WHOLE)
def test_a_folder_of_which_datasets_reads_less_is_read_as_a_whole(tmp_path, shape):
    """All records that pandas and pyarrow find in its files are read, and it is said why they may be too many."""
    folder, (files, said) = tmp_path / "folder", WHOLE[shape]
    make(folder, files)
    source = FilesDataSource([str(folder)])
    paths = [path for path in visible(folder) if path.suffix != ".md"]
    assert Counter(texts_of(source)) == Counter(chain.from_iterable(map(read, paths)))
    sentences = [remark.sentence for remark in source.remarks() if not remark.sentence.startswith("fields of")]
    assert not said or any(re.search(said, sentence) for sentence in sentences)
    check_counted(source, folder)


def save(folder):
    datasets.Dataset.from_dict({"text": [f"text {number}" for number in range(6)]}).save_to_disk(folder, num_shards=3)


def save_shorter(folder):
    save(folder)
    datasets.load_from_disk(folder).select(range(4)).save_to_disk(f"{folder}-new", num_shards=2)
    for file in Path(f"{folder}-new").iterdir():
        file.rename(Path(folder) / file.name)


def map_saved(folder):
    save(folder)
    datasets.load_from_disk(folder).map(lambda row: {"text": row["text"] + "!"})


def map_saved_by_two(folder):
    save(folder)
    datasets.load_from_disk(folder).map(str_of_row, num_proc=2)


def str_of_row(row):
    return {"text": row["text"] + "!"}


def shuffle_saved(folder):
    save(folder)
    datasets.load_from_disk(folder).shuffle(seed=1).filter(lambda row: row["text"] != "text 1")


def save_splits(folder):
    train = datasets.Dataset.from_dict({"text": ["one", "two"]})
    datasets.DatasetDict({"train": train, "test": train.select([1])}).save_to_disk(folder)


@pytest.mark.parametrize("make_saved", [save, save_shorter, map_saved, map_saved_by_two, shuffle_saved, save_splits])
def test_a_saved_dataset_has_the_rows_that_the_library_loads(tmp_path, make_saved):
    """Files that the library leaves beside those of the dataset are not read, and counted."""
    folder = tmp_path / "saved"
    make_saved(str(folder))
    loaded = datasets.load_from_disk(str(folder))
    expected = list((loaded["train"] if make_saved is save_splits else loaded)["text"])
    source = FilesDataSource([str(folder)])
    assert texts_of(source) == texts_of(HuggingfaceDataSource(str(folder))) == expected
    check_counted(source, folder)


def test_what_the_library_keeps_of_a_dataset_is_the_dataset(tmp_path):
    """In the library's own folder the results of work with the rows are no rows."""
    make(tmp_path / "folder", ["a.jsonl", "b.jsonl"])
    dataset = datasets.load_dataset(str(tmp_path / "folder"), split="train", cache_dir=str(tmp_path / "kept"))
    dataset.map(lambda row: {"text": row["text"] + "!"})
    source = FilesDataSource([str(tmp_path / "kept")])
    assert texts_of(source) == list(dataset["text"])
    check_counted(source, tmp_path / "kept")


@pytest.mark.parametrize("link", ["snapshot", "folder", "file"])
def test_links_lead_to_the_documents(tmp_path, link):
    """A snapshot of the Hub's cache, a linked folder and a linked file hold what they lead to, once."""
    folder = tmp_path / "folder"
    files = ["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet", card(DEFAULT)]
    make(tmp_path / "made", files)
    if link == "folder":
        folder.mkdir()
        (folder / "data").symlink_to(tmp_path / "made/data")
    for number, path in enumerate(visible(tmp_path / "made") if link != "folder" else ()):
        other = folder / path.relative_to(tmp_path / "made")
        other.parent.mkdir(parents=True, exist_ok=True)
        if link == "snapshot":
            other.symlink_to(path.rename(tmp_path / f"{number:040}"))
        else:
            other.symlink_to(path)
    source = FilesDataSource([str(folder)])
    assert texts_of(source) == found_by_datasets(folder, tmp_path) == texts_in(files[0])


@pytest.mark.parametrize("names", [["a.txt", "b/c.txt"], ["train.txt", "test.txt"], ["a.txt", "b.txt.gz"]])
def test_texts_of_a_folder_are_documents(tmp_path, names):
    """Each is one document, with and without a line end, of which the other library changes line ends alone."""
    folder, texts = tmp_path / "folder", ["one\ntwo\n", "thr\u2028ee\r\nfour"]
    for name, text in zip(names, texts, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        content = text.encode()
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    options = {"split": "train", "cache_dir": str(tmp_path / "cache"), "sample_by": "document"}
    found = texts_of(FilesDataSource([str(folder)]))
    assert [text.replace("\r\n", "\n") for text in found] == list(datasets.load_dataset(str(folder), **options)["text"])
    assert found == texts[: len(found)]
