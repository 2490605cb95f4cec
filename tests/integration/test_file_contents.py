"""What identifies the bytes of a file is found while it is read."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import datasets
import pytest

from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.formats.records import Limits
from holdfast.adapters.data_source.huggingface import HuggingfaceDataSource
from holdfast.application.data.rejected_records import RejectedRecords
from holdfast.application.data.text_reader import TextReader
from holdfast.bootstrap.stages.prepare.dataset_registry import Datasets, cache_key
from holdfast.domain.data.data_files import DataFiles, difference, join
from tests.support.encoders import BYTES

LINES = 120_000


def write(folder):
    """Write a file of each kind that is read from front to back, the first two of more than one block."""
    folder.mkdir()
    lines = [json.dumps({"text": f"document {number} " + "of many words " * 6}) for number in range(LINES)]
    (folder / "a.jsonl").write_text("\n".join(lines))
    (folder / "b.ndjson").write_text('{"text": "a line of a record"}\n' * 300_000)
    (folder / "c.jsonl.gz").write_bytes(gzip.compress("\n".join(lines[:5000]).encode(), 1))
    (folder / "d.csv").write_text("text,id\n" + "a text,1\n" * 5000)
    (folder / "e.jsonl").write_text("")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of files, which no test changes."""
    return write(tmp_path_factory.mktemp("contents") / "md")


def contents(files):
    return {file.name: file.content for file in files.files}


def read_all(source, names=("a", "b", "c", "d", "e")):
    for unit in reversed(source.units()):  # in any order
        if Path(unit.name).name[0] in names:
            for _ in source.read(unit):
                pass


def test_reading_finds_what_hashing_finds(folder):
    """Units that were read in any order give the contents that reading for nothing else gives; none stays unknown."""
    read, hashed = FilesDataSource([str(folder)]), FilesDataSource([str(folder)])
    read_all(read)
    assert contents(read.files()) == contents(hashed.identify())
    assert len(set(contents(read.files()).values())) == 5


def test_a_file_that_was_not_read_to_its_end_is_not_known(folder):
    """A part that was left early, or never begun, leaves its file unknown, and ``identify`` reads the rest."""
    source = FilesDataSource([str(folder)])
    read_all(source, names=("b",))
    first = next(unit for unit in source.units() if unit.name.endswith("a.jsonl"))
    next(iter(source.read(first)))
    known = contents(source.files())
    assert known["b.ndjson"] is not None
    assert known["a.jsonl"] is None
    assert None not in contents(source.identify()).values()


def test_any_byte_counts(folder, tmp_path):
    """Another byte in any block, the last one too, is other content, whatever the times say."""
    before = FilesDataSource([str(folder)]).identify()
    other = write(tmp_path / "other")
    path = other / "b.ndjson"
    data = bytearray(path.read_bytes())
    data[-4] ^= 1
    path.write_bytes(data)
    status = (folder / "b.ndjson").stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert difference(before, FilesDataSource([str(other)]).identify(before)) == (
        "the content of b.ndjson has changed, its size has not"
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda path: path.write_text("a lime\n"), "the content of the file has changed, its size has not"),
        (lambda path: path.write_text("a longer line\n"), "the content of the file has changed: it had 7 bytes"),
    ],
)
def test_a_single_file_that_differs_is_told_in_words(tmp_path, change, told):
    """The file that data.path names itself has no name below it, so a sentence calls it the file, in a mixture too."""
    path = tmp_path / "one.txt"
    path.write_text("a line\n")
    before = FilesDataSource([str(path)]).identify()
    change(path)
    after = FilesDataSource([str(path)]).identify()
    assert str(difference(before, after)).startswith(told)
    mixed = difference(join({"one": before}), join({"one": after}))
    assert str(mixed).startswith(told.replace("the file", "one: the file"))


@pytest.mark.parametrize("contents", [["one"], [], "text", None, 5, [{}, {}, {}, {}, {}]])
def test_a_damaged_memory_of_contents_is_no_memory(folder, tmp_path, contents):
    """What was remembered of files counts only if it has a content for each; else their tokens have their own name."""
    reader = TextReader(FilesDataSource([str(folder)]), BYTES, RejectedRecords("stop"))
    Datasets(tmp_path).keep(reader)
    (path,) = tmp_path.glob(".contents/*.json")
    known = json.loads(path.read_text())
    path.write_text(json.dumps({key: {"dataset": "another", "contents": contents} for key in known}))
    again = TextReader(FilesDataSource([str(folder)]), BYTES, RejectedRecords("stop"))
    assert Datasets(tmp_path).name_of(again) == cache_key(again)


def test_a_pipe_in_place_of_a_memory_of_contents_is_not_waited_for(folder, tmp_path):
    """A pipe where contents are remembered is no memory, and the next one replaces it."""
    reader = TextReader(FilesDataSource([str(folder)]), BYTES, RejectedRecords("stop"))
    Datasets(tmp_path).keep(reader)
    (path,) = tmp_path.glob(".contents/*.json")
    before = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    again = TextReader(FilesDataSource([str(folder)]), BYTES, RejectedRecords("stop"))
    assert Datasets(tmp_path).name_of(again) == cache_key(again)
    Datasets(tmp_path).keep(again)
    assert path.read_bytes() == before


def test_hashing_is_told_only_where_files_are_read(tmp_path):
    """A person sees that data are hashed where their contents are not known, and nothing where they are."""
    path = tmp_path / "one.txt"
    path.write_text("a line\n" * 1000)
    told = []
    reader = TextReader(FilesDataSource([str(path)]), BYTES, RejectedRecords("stop"))
    for _ in range(2):
        Datasets(tmp_path, show=lambda phase, share=None: told.append(phase)).keep(reader)
    assert told == ["hashing 6.8 KiB of data"]


def test_what_is_known_is_not_read_again(folder):
    """A file with the stamp that it had is taken for what its record says, without a look at its bytes."""
    known = FilesDataSource([str(folder)]).identify()
    record = DataFiles.from_json(json.loads(json.dumps(known.to_json())))
    assert record == known
    told = [replace(file, content="told") for file in record.files]
    again = FilesDataSource([str(folder)]).identify(replace(record, files=told))
    assert set(contents(again).values()) == {"told"}


def test_reading_a_saved_dataset_finds_what_hashing_finds(tmp_path):
    """Once each unit of a saved dataset was read, in any order, the contents of its files are known, and not before."""
    texts = [f"document {number} " + "of many words " * 99 for number in range(20_000)]
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(tmp_path, num_shards=2)
    read, hashed = (HuggingfaceDataSource(str(tmp_path), limits=Limits(unit_bytes=20 << 20)) for _ in range(2))
    first, *others = read.units()
    for unit in reversed(others):
        for _ in read.read(unit):
            pass
    known = contents(read.files())
    assert len(known) == 2
    assert None in known.values()
    for _ in read.read(first):
        pass
    assert None not in contents(read.files()).values()
    assert contents(read.files()) == contents(hashed.identify())
