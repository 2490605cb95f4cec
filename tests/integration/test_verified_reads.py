"""Whichever reading of a data file returns a wrong bit, documents and hashes are right or the reading is refused."""

from __future__ import annotations

import gzip
import io
import json
import os
from concurrent.futures import Future
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from pyarrow import feather

from holdfast.adapters.data_source import file_access
from holdfast.adapters.data_source import verified_stream as content_hashes
from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.huggingface import HuggingfaceDataSource
from holdfast.adapters.data_source.remote_file import RemoteFile
from holdfast.adapters.data_source.verified_stream import LOCAL_BLOCK_BYTES
from holdfast.adapters.tokenizer import train
from holdfast.application.data.choose_holdout import choose_holdout
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.errors import StateError
from tests.support.command_line import corpus, run_here, tiny
from tests.support.faulty_server import faulty_server

TEXTS = [f"document {number} tells of rivers and roads " + "a" * 1400 for number in range(900)]
LINES = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS)
WRITERS = {
    "a.jsonl": lambda path: path.write_bytes(LINES),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES, 0)),
    "a.csv": lambda path: path.write_text("text\n" + "".join(f"{text}\n" for text in TEXTS)),
    "a.txt": lambda path: path.write_text("".join(f"{text}\n" for text in TEXTS)),
    "a.parquet": lambda path: pq.write_table(pa.table({"text": TEXTS}), path, compression="none", use_dictionary=False),
    "a.arrow": lambda path: feather.write_feather(pa.table({"text": TEXTS}), str(path), compression="uncompressed"),
}


class Flips:
    """Counts readings; the one of number ``target`` has a wrong bit."""

    def __init__(self, target=-1):
        self.target = target
        self.count = 0

    def spoil(self, data):
        """Return ``data``, wrong if they are those of the target."""
        self.count += 1
        if self.count - 1 != self.target or not len(data):
            return data
        wrong = bytearray(data)
        wrong[len(wrong) // 2] ^= 1
        return bytes(wrong)


@pytest.fixture
def flips(monkeypatch):
    """Return what counts the readings of local files, and spoils one."""
    found, pread = Flips(), os.pread

    class Spoilt(io.FileIO):
        def readinto(self, buffer, /):
            view = memoryview(buffer).cast("B")
            data = found.spoil(super().read(len(view)))
            view[: len(data)] = data
            return len(data)

    class Counted(Spoilt):
        def __init__(self, path, _):
            super().__init__(path)

    monkeypatch.setattr(file_access, "_LocalFile", Counted)
    monkeypatch.setattr(content_hashes.io, "FileIO", Spoilt)
    monkeypatch.setattr(os, "pread", lambda *place: found.spoil(pread(*place)))
    return found


def texts_of(source):
    return [getattr(found, "text", found) for unit in source.units() for found in source.read(unit)]


def passes(path):
    """Return what two passes over a file and its hash are."""
    source = FilesDataSource([str(path)])
    return texts_of(source), texts_of(source), [file.content for file in source.identify().files]


@pytest.mark.parametrize("name", WRITERS)
def test_one_wrong_reading_of_any_pass_is_never_used(flips, tmp_path, name):
    """Each reading in turn is wrong: both passes give the same documents, and the hash is that of the file."""
    WRITERS[name](tmp_path / name)
    right = passes(tmp_path / name)
    total = flips.count
    assert total > 6
    assert right[0] == right[1]
    for number in range(total):
        flips.count, flips.target = 0, number
        assert passes(tmp_path / name) == right, number


def test_bytes_that_stay_different_are_refused_with_their_place(tmp_path):
    """A file whose bytes change between two passes, while its time stays, is refused with its name and the offset."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    source, status = FilesDataSource([str(path)]), path.stat()
    texts_of(source)
    wrong = bytearray(LINES)
    wrong[LOCAL_BLOCK_BYTES + 50] ^= 1
    path.write_bytes(wrong)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(StateError, match=r"a\.jsonl: the bytes from 524,288 on are not those that were read"):
        texts_of(source)


def test_a_file_that_is_not_the_recorded_one_is_refused_once_it_was_read(tmp_path):
    """A hash that was taken over from a record, as time and size were those, is compared with what is read."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(LINES)
    known, status = FilesDataSource([str(path)]).identify(), path.stat()
    path.write_bytes(LINES.replace(b"rivers", b"towers", 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    source = FilesDataSource([str(path)])
    source.identify(known)
    with pytest.raises(StateError, match="is not the one that was recorded"):
        texts_of(source)


@pytest.fixture
def spoilt_ranges(monkeypatch):
    """Return what counts the ranges of remote files, and spoils one."""
    found, fetch = Flips(), RemoteFile.fetch

    def spoilt(self, begin, end):
        body = Future()
        body.set_result(found.spoil(bytes(fetch(self, begin, end).result(60))))
        return body

    monkeypatch.setattr(RemoteFile, "fetch", spoilt)
    return found


def test_a_wrong_reading_of_a_later_pass_over_a_remote_file_is_not_used(spoilt_ranges):
    """What was read before is known by its digest; a wrong first reading is refused by the next pass."""
    with faulty_server(files={"/a.jsonl": LINES}) as server:
        source = FilesDataSource([f"{server.url}/a.jsonl"])
        right = texts_of(source)
        first = spoilt_ranges.count
        for number in range(first, 2 * first):
            spoilt_ranges.count, spoilt_ranges.target = first, number
            assert texts_of(source) == right
        spoilt_ranges.count, spoilt_ranges.target = 0, 0
        other = FilesDataSource([f"{server.url}/a.jsonl"])
        assert texts_of(other) != right
        with pytest.raises(StateError, match="are not those that were read and used earlier"):
            texts_of(other)


def test_what_a_stored_result_is_made_of_is_read_twice_from_a_remote_place_too(spoilt_ranges):
    """A confirming source and a choice of the hold-out use no wrong reading, not even the first of all."""
    with faulty_server(files={"/a.jsonl": LINES}) as server:

        def made():
            source = FilesDataSource([f"{server.url}/a.jsonl"])
            chosen = choose_holdout(source, Holdout(1e-12, 0), lambda _: None)
            return chosen, texts_of(source.confirming())

        right = made()
        total, ends = spoilt_ranges.count, []
        for number in range(total):
            spoilt_ranges.count, spoilt_ranges.target = 0, number
            ends.append(made() == right)
        assert ends == [True] * total


def change_in_place(path):
    """Change a letter of a document; the time of the file stays."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[-9] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_run_ends_where_its_text_is_not_what_its_tokenizer_was_trained_on(tmp_path, monkeypatch, mode):
    """It says which file it is and at which place, and ends with code 4 before anything else is trained on."""
    text, store = corpus(tmp_path), train._store

    def stored(*given):
        store(*given)
        change_in_place(text)

    monkeypatch.setattr(train, "_store", stored)
    ended = run_here("train", *tiny(text, "run.budget.steps=1", f"data.mode={mode}"), cwd=tmp_path)
    assert ended.returncode == 4
    assert "corpus.jsonl: the bytes from 0 on are not those that were read and used earlier" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(tmp_path.rglob("tokens.bin"))


def test_a_saved_dataset_that_is_not_the_recorded_one_is_refused(tmp_path):
    """It is no record that could be skipped."""
    Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path)
    known = HuggingfaceDataSource(str(tmp_path)).identify()
    source = HuggingfaceDataSource(str(tmp_path))
    source.identify(replace(known, files=[replace(file, content="0" * 32) for file in known.files]))
    with pytest.raises(StateError, match="is not the one that was recorded"):
        texts_of(source)
