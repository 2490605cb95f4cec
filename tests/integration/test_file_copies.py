"""Files of records that repeat others are named, as their records are read several times."""

import bz2
import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.adapters.data_source import files as file_copies
from holdfast.adapters.data_source.files import FilesDataSource
from tests.support.reading import texts_of

TEXTS = [f"text {number}" for number in range(20)]


def lines(texts):
    return "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines(TEXTS))
    (tmp_path / "b.jsonl").write_bytes(lines(TEXTS[::-1]))  # as large as the other
    return tmp_path


def said(folder):
    source = FilesDataSource([str(folder)])
    remarks = source.remarks()
    assert not any(remark.unused for remark in remarks)
    return [remark.sentence for remark in remarks], len(texts_of(source))


def test_files_of_one_size_are_no_copies(folder):
    """Files that are merely equally large are not named."""
    assert said(folder) == ([], 40)


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("suffix", ["jsonl", "txt"])
def test_a_link_to_a_file_that_is_read_is_named(tmp_path, link, suffix):
    """A link to a file of the same folder is named, symbolic or hard, for plain text too."""
    (tmp_path / f"a.{suffix}").write_bytes(lines(TEXTS[:1]))
    link(tmp_path / f"a.{suffix}", tmp_path / f"latest.{suffix}")
    sentence = "1 file is another one under a second name, so its records are read several times: "
    assert said(tmp_path) == ([sentence + f"latest.{suffix}"], 2)


def test_copies_are_named(folder):
    """Files that have the size and the beginning of another are named, wherever in the folder they lie."""
    for name in ("a copy.jsonl", "c/a.jsonl"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(lines(TEXTS))
    sentence = "2 files seem to be copies of others, with their sizes, beginnings and ends; if so, their records are "
    assert said(folder) == ([sentence + "read several times: a.jsonl, c/a.jsonl"], 80)


@pytest.mark.parametrize("place", ["first", "last", "middle"])
def test_files_that_differ_at_an_end_are_no_copies(tmp_path, place):
    """Files of one size whose beginning or end differs are not named; of others it is said that they seem the same."""
    texts = ["the same text " * 20] * 60
    for number in range(3):
        own = list(texts)
        own[{"first": 0, "last": -1, "middle": 30}[place]] = f"text {number}"
        (tmp_path / f"{number}.jsonl").write_bytes(lines(own))
    sentences, documents = said(tmp_path)
    assert documents == 180
    assert ["seem to be copies" in each for each in sentences] == [True] * (place == "middle")


def test_copies_of_tables_are_named(tmp_path):
    """Copies of Parquet files are named too."""
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.table({"text": TEXTS}), tmp_path / name)
    ((sentence,), _) = said(tmp_path)
    assert sentence.startswith("1 file seems to be a copy of another")
    assert sentence.endswith("its records are read several times: b.parquet")


@pytest.mark.parametrize(("pack", "suffix"), [(gzip.compress, "gz"), (bz2.compress, "bz2")])
def test_a_packed_file_beside_the_unpacked_one_is_named(folder, pack, suffix):
    """A packed file is named if it holds the file of its name, and not if it holds something else."""
    (folder / f"a.jsonl.{suffix}").write_bytes(pack(lines(TEXTS)))
    (folder / f"b.jsonl.{suffix}").write_bytes(pack(lines(["something else"])))
    sentence = "1 file seems to be another one in packed form, as it begins like it; if so, its records are "
    of_folder, of_copies = said(folder)[0]
    assert "files of several formats are read: " in of_folder
    assert of_copies == sentence + f"read several times: a.jsonl.{suffix}"
    assert said(folder)[1] == 61


def test_the_number_of_files_that_are_opened_is_limited(folder, monkeypatch):
    """Beyond a number of files no more are opened to be compared."""
    monkeypatch.setattr(file_copies, "_MOST_FILES", 1)
    (folder / "c.jsonl").write_bytes(lines(TEXTS))
    assert said(folder) == ([], 60)


def test_short_texts_may_repeat(tmp_path):
    """Plain text files of the same content are not named."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("the same")
    assert said(tmp_path) == ([], 2)
