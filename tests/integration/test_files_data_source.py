"""What files of text and of lines hold, good and bad, wherever they lie."""

from __future__ import annotations

import gzip
import json
import random
import re
import time
import tracemalloc
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source import file_reader
from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.formats import txt
from holdfast.adapters.data_source.formats.compression import zstd
from holdfast.adapters.data_source.formats.records import Limits, Reading
from holdfast.adapters.data_source.verified_stream import REMOTE_BLOCK_BYTES
from holdfast.ports.data_source import Rejected
from tests.support.faulty_server import faulty_server
from tests.support.reading import read_all, texts_of

TEXTS = ["one\ntwo", "für 四 🙂", '"quotes" and \\', "last"]
PAYLOADS = {
    "txt": "".join(TEXTS).encode(),
    "jsonl": b"\n".join(json.dumps({"id": 1, "text": text}).encode() for text in TEXTS),
}

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
text_files = st.lists(st.one_of(texts, st.sampled_from(["\n", "\r\n", " ", "\t\n", "x" * 40, "四" * 20, "🙂" * 9])))


@pytest.mark.parametrize("place", ["local", "memory"], indirect=True)
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_the_place_and_the_compression_change_no_document(place, kind, suffix):
    """A file gives the same texts and positions on a disk and elsewhere, plain and gzipped, by suffix or by name."""
    content = PAYLOADS[kind]
    packed = gzip.compress(content) if suffix else content
    by_suffix = FilesDataSource([place(f"a.{kind}{suffix}", packed)])
    by_format = FilesDataSource([place(f"b.strange{suffix}", packed)], format=kind)
    assert texts_of(by_suffix) == (TEXTS if kind == "jsonl" else ["".join(TEXTS)])
    assert read_all(by_suffix) == read_all(by_format)
    assert read_all(by_suffix)[-1].end == len(content)


@settings(deadline=None)
@given(parts=text_files, document_bytes=st.integers(4, 64), is_packed=st.booleans())
def test_the_pieces_of_a_text_make_the_text(parts, document_bytes, is_packed):
    """The pieces of a text put together are its text less blank pieces, each in bounds, and every cut resumes."""
    content = "".join(parts).encode()
    with TemporaryDirectory() as folder:
        path = Path(folder, "a.txt.gz" if is_packed else "a.txt")
        path.write_bytes(gzip.compress(content, 1) if is_packed else content)
        source = FilesDataSource([str(path)], limits=Limits(document_bytes=document_bytes))
        (unit,) = source.units()
        documents = list(source.read(unit))
        end = 0
        for index, document in enumerate(documents):
            assert not document.text.isspace()
            assert document.end - document.start < 2 * document_bytes
            assert content[document.start : document.end].decode("utf-8-sig" if not document.start else "utf-8") == (
                document.text
            )
            assert is_blank(content[end : document.start])
            assert list(source.read(unit, document.end)) == documents[index + 1 :]
            end = document.end
        assert is_blank(content[end:])


@settings(deadline=None)
@given(
    parts=st.lists(st.sampled_from(["a", "-", "--", "---", "四", "\n", " ", "<end>", "<e", "b" * 9])),
    separator=st.sampled_from(["<end>", "---", "四", "\n\n", "aba"]),
    unit_bytes=st.integers(1, 40),
    piece=st.integers(1, 12),
    is_packed=st.booleans(),
)
def test_a_separator_divides_a_text(parts, separator, unit_bytes, piece, is_packed):
    """Documents are what no separator covers, however the file is divided, stored and read, and each end resumes."""
    content = "".join(parts)
    covered = {at for found in re.finditer(f"(?={re.escape(separator)})", content) for at in found_in(found, separator)}
    marked = "".join("\0" if at in covered else char for at, char in enumerate(content))
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(txt, "_PIECE_BYTES", piece)
        path = Path(folder, "a.txt.gz" if is_packed else "a.txt")
        path.write_bytes(gzip.compress(content.encode(), 1) if is_packed else content.encode())
        source = FilesDataSource([folder], limits=Limits(unit_bytes=unit_bytes))
        source = source.with_reading(Reading(separator=separator))
        assert texts_of(source) == [text for text in marked.split("\0") if text.strip()]
        for unit in source.units():
            documents = list(source.read(unit))
            for index, document in enumerate(documents):
                assert content.encode()[document.start : document.end].decode() == document.text
                assert list(source.read(unit, document.start)) == documents[index:]
                assert list(source.read(unit, document.end)) == documents[index + 1 :]


def found_in(found, separator):
    return range(found.start(), found.start() + len(separator))


@pytest.mark.parametrize("unit_bytes", [8 << 20, 5])
def test_a_document_beyond_the_limit_is_passed_over(place, unit_bytes):
    """A text between separators that is longer than a record may be is rejected, and those around it are read."""
    limits = Limits(record_bytes=9, unit_bytes=unit_bytes)
    source = FilesDataSource(
        [place("a.txt", b"\xef\xbb\xbf123456---1234567890---123456789---12\xff---last")], limits=limits
    )
    one, long, whole, bad, last = read_all(source.with_reading(Reading(separator="---")))
    assert [document.text for document in (one, whole, last)] == ["123456", "123456789", "last"]
    assert "document at byte 12: the record is longer than 9 bytes" in long.reason
    assert "byte 39 is not UTF-8" in bad.reason


@pytest.mark.slow
def test_a_text_without_its_separator_is_never_held_whole(place):
    """A file that holds no separator is one document, which is passed over in little memory if it is too long."""
    path = place("a.txt", b"x" * (32 << 20))
    source = FilesDataSource([path], limits=Limits(record_bytes=1 << 20, unit_bytes=8 << 20))
    tracemalloc.start()
    (bad,) = read_all(source.with_reading(Reading(separator="---")))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(bad, Rejected)
    assert peak < 8 << 20


def is_blank(content: bytes) -> bool:
    return not content.decode("utf-8-sig").strip()


@settings(deadline=None)
@given(
    lines=st.lists(st.one_of(texts.map(json.dumps), texts.map(partial(json.dumps, ensure_ascii=False)))), data=st.data()
)
def test_json_lines_come_back(lines, data):
    """Every text that is not blank comes back from its line, at its line's bytes, from any line's start on."""
    blank_lines = data.draw(st.lists(st.sampled_from(["", " ", "\r"]), min_size=len(lines), max_size=len(lines)))
    content = "".join(
        f'{blank}\n{{"other": 1, "text": {line}}}\n' for line, blank in zip(lines, blank_lines, strict=True)
    )
    with TemporaryDirectory() as folder:
        Path(folder, "a.jsonl").write_bytes(content.encode())
        source = FilesDataSource([folder])
        (unit,) = source.units()
        documents = list(source.read(unit))
        expected = [json.loads(line) for line in lines]
        assert [document.text for document in documents] == [text for text in expected if text.strip()]
        for index, document in enumerate(documents):
            assert json.loads(content.encode()[document.start : document.end])["text"] == document.text
            assert list(source.read(unit, document.end)) == documents[index + 1 :]


def test_a_text_is_cut_behind_lines(place):
    """Each 8 bytes of a file end a piece behind their last line or character; white space alone is no document."""
    content = "ab\ncd\nefgh\n      \n      \n四四四四四四".encode()
    source = FilesDataSource([place("a.txt", content)], limits=Limits(document_bytes=8))
    assert texts_of(source) == ["ab\ncd\n", "efgh\n", "四四四四四", "四"]


def test_a_byte_order_mark_is_no_text(place):
    """The mark that some programs put before UTF-8 is not part of the first document."""
    sources = [
        FilesDataSource([place("a.txt", b"\xef\xbb\xbftext")]),
        FilesDataSource([place("a.jsonl", b'\xef\xbb\xbf{"text": "text"}\n')]),
        FilesDataSource([place("b.jsonl", '{"text": "\ufeffin the record"}'.encode())]),
    ]
    assert [texts_of(source) for source in sources] == [["text"], ["text"], ["\ufeffin the record"]]


BAD_LINES = {
    "not JSON": (b"{text: 1}", "not JSON"),
    "too deep": (b"[" * 100_000, "not JSON"),
    "huge number": (b'{"text": ' + b"1" * 5000 + b"}", "not JSON"),
    "a list": (b'["text"]', "a list, not a JSON object"),
    "text alone": (b'"text"', "text, not a JSON object"),
    "no such field": (b'{"id": 1, "content": "x"}', "'text' is missing; there is 'id', 'content': set data.text_field"),
    "no field": (b"{}", "there is nothing at all"),
    "null": (b'{"text": null}', "'text' holds null, not text"),
    "half a pair": (b'{"text": "ab\\ud800"}', "\\ud800"),
    "Latin-1": (b'{"text": "f\xfcr"}', "byte 34 is not UTF-8"),
    "UTF-16": ('{"text": "x"}'.encode("utf-16"), "not UTF-8"),
    "long": (b'{"text": "' + b"x" * 200_000 + b'"}', "longer than 150,000 bytes"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_line_is_named(place, case):
    """A rejection tells file and byte of a record that cannot be used and what is wrong, and the next line is read."""
    line, problem = BAD_LINES[case]
    content = b'{"text": "good"}\n\n  \n\n\n' + line + b'\n{"text": "too"}'
    source = FilesDataSource([place("bad.jsonl", content)], limits=Limits(record_bytes=150_000))
    first, bad, last = read_all(source)
    assert (first.text, last.text) == ("good", "too")
    assert "bad.jsonl" in bad.reason
    assert problem in bad.reason
    assert content[bad.start : bad.end] == line + b"\n"
    assert "not UTF-8" in problem or "line at byte 23" in bad.reason


def test_another_text_field_may_be_chosen(place):
    """The field that holds the text is a choice."""
    source = FilesDataSource([place("a.jsonl", b'{"content": "x", "text": 5}')], text_field="content")
    assert texts_of(source) == ["x"]


BAD_FILES = {
    "Latin-1.txt": (b"good\nf\xfcr", "byte 6 is not UTF-8"),
    "cut.txt": ("good 四".encode()[:-1], "byte 5 is not UTF-8"),
    "zeros.txt": (b"good\n\0", "NUL at byte 5"),
    "UTF-16.txt": ("text".encode("utf-16-le"), "set data.encoding if it is UTF-16"),
    "program.py": (b"\x7fELF\x02\x01\x01\0\0", "NUL at byte 7"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_piece_that_is_no_text_is_named(place, name):
    """A binary file or another encoding gives one sentence that names file and place, and what follows is read."""
    content, problem = BAD_FILES[name]
    padded = content + b"\n" * (20 - len(content)) + b"and more"
    bad, rest = read_all(FilesDataSource([place(name, padded)], limits=Limits(document_bytes=20)))
    assert (bad.start, bad.end, rest.text) == (0, 20, "and more")
    assert name in bad.reason
    assert problem in bad.reason


PACKED = {
    "plain.txt.gz": (b"no gzip", "truncated or damaged gzip file"),
    "short.txt.gz": (
        gzip.compress(random.Random(0).randbytes(900).hex().encode())[:-20],
        "truncated or damaged gzip file",
    ),
    "flipped.jsonl.gz": (gzip.compress(b'{"text": "x"}')[:-8] + bytes(8), "truncated or damaged gzip file"),
    "followed.jsonl.gz": (gzip.compress(b'{"text": "x"}') + b"more", "truncated or damaged gzip file"),
    "plain.txt.zst": (b"no zstd", "truncated or damaged zstd file"),
    "short.txt.zst": (
        zstd.compress(random.Random(0).randbytes(900).hex().encode())[:-20],
        "truncated or damaged zstd file",
    ),
    "between.csv.zst": (zstd.compress(b"text\nx\n") + zstd.compress(b"y\n")[:-1], "truncated or damaged zstd file"),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_damaged_archive_is_named(place, name):
    """A damaged archive ends the reading with one sentence that names the file."""
    content, problem = PACKED[name]
    *_, bad = read_all(FilesDataSource([place(name, content)]))
    assert name in bad.reason
    assert problem in bad.reason
    assert bad.end is None


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_what_an_archive_holds_before_its_damage_is_read(place, suffix):
    """The documents in front of the damage come, the same ones from wherever reading begins."""
    chance = random.Random(0)
    lines = b"".join(b'{"text": "%d %s"}\n' % (number, chance.randbytes(50).hex().encode()) for number in range(9000))
    packed = {"gz": gzip.compress, "zst": zstd.compress}[suffix](lines)
    source = FilesDataSource([place(f"a.jsonl.{suffix}", packed[: len(packed) * 2 // 3])])
    (unit,) = source.units()
    found = list(source.read(unit))
    assert len(found) > 4000
    for index in (len(found) // 2, len(found) - 2):
        assert list(source.read(unit, found[index].start)) == found[index:]


def test_archives_behind_each_other_are_one_text(place):
    """Several gzip members or zstd frames in a file are read as one, padding behind the last one is no damage."""
    members = [gzip.compress(b'{"text": "on'), gzip.compress(b'e"}\n{"text": "two"}'), bytes(100_000)]
    frames = [zstd.compress(b'{"text": "on'), zstd.compress(b""), zstd.compress(b'e"}\n{"text": "two"}')]
    assert texts_of(FilesDataSource([place("a.jsonl.gz", b"".join(members))])) == ["one", "two"]
    assert texts_of(FilesDataSource([place("a.jsonl.zst", b"".join(frames))])) == ["one", "two"]


def test_resuming_in_a_truncated_archive_is_rejected(place):
    """Skipping to a position behind what a damaged archive still holds does not look like its end."""
    packed = gzip.compress(b"".join(b"%d\n" % number for number in range(20_000)))
    source = FilesDataSource([place("short.txt.gz", packed[: len(packed) // 2])])
    (unit,) = source.units()
    (bad,) = source.read(unit, 100_000)
    assert "truncated" in bad.reason


@pytest.mark.parametrize("name", ["long.jsonl.gz", "long.csv.zst"])
def test_a_long_record_is_never_held_whole(place, name):
    """A record beyond the limit is passed over in little memory, and what follows it is read."""
    size, record = 64 << 20, ('{"text": "%s"}\n' if "jsonl" in name else 'text\n"%s"\n')
    before, behind = (part.encode() for part in record.split("%s"))
    last = b'{"text": "last"}' if "jsonl" in name else b"last"
    path = place(name, b"")
    with (gzip.open if name.endswith("gz") else zstd.open)(path, "wb") as archive:
        archive.write(before)
        for _ in range(size >> 20):
            archive.write(b"x" * ((1 << 20) - 1) + (b"\n" if "csv" in name else b"x"))
        archive.write(behind + last)
    tracemalloc.start()
    bad, good = read_all(FilesDataSource([path], limits=Limits(record_bytes=1 << 20)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "longer than 1,048,576 bytes" in bad.reason
    assert good.text == "last"
    assert peak < 8 << 20


def test_a_long_text_is_never_held_whole(place):
    """The first document of a file without an end to its line comes without reading the rest of it."""
    path = place("long.txt.gz", gzip.compress(b"x" * (8 << 20))[:-100])
    (unit,) = (source := FilesDataSource([path])).units()
    assert next(source.read(unit)).end == 64 << 10


def test_a_file_that_changes_meanwhile_is_rejected(place):
    """Positions say nothing of other bytes: a file that is not the one that was listed is not read."""
    source = FilesDataSource([place("a.txt", b"text")])
    (unit,) = source.units()
    place("a.txt", b"text and more")
    (bad,) = source.read(unit)
    assert "a.txt was changed since it was listed" in bad.reason
    assert bad.end is None


def test_the_fingerprint_tells_how_files_are_read(place):
    """Another format, field or size of piece is another fingerprint; another order of paths is not."""
    one, two = place("a.txt", b"{}"), place("b.txt", b"{}")
    sources = [
        FilesDataSource([one, two]),
        FilesDataSource([one]),
        FilesDataSource([one, two], limits=Limits(document_bytes=8)),
        FilesDataSource([one, two], format="jsonl"),
        FilesDataSource([one, two], format="jsonl", text_field="body"),
        FilesDataSource([one, two], format="jsonl", filter={"id": 1}),
        FilesDataSource([one, two], format="jsonl", filter={"id": [1, 2]}),
        FilesDataSource([one, two], compression="gz"),
        FilesDataSource([one, two]).with_reading(Reading(separator="---")),
        FilesDataSource([one, two]).with_reading(Reading(separator="--")),
    ]
    assert len({source.fingerprint() for source in sources}) == len(sources)
    assert FilesDataSource([two, one]).fingerprint() == sources[0].fingerprint()


def _wait_for(server, number):
    """Wait until the server was asked for at least `number` parts."""
    end = time.monotonic() + 60
    while len(server.requests) < number and time.monotonic() < end:
        time.sleep(0.01)
    assert len(server.requests) >= number


@pytest.mark.parametrize("is_packed", [False, True])
def test_what_is_expected_is_read_all_the_same(is_packed):
    """Parts that were expected, in whatever number and from wherever, give the documents that they give otherwise."""
    lines = b"".join(b'{"text": "%d"}\n' % number for number in range(3000))
    name, content = ("/x.jsonl.gz", gzip.compress(lines)) if is_packed else ("/x.jsonl", lines)
    with faulty_server(files={name: content}) as server:
        limits = Limits(unit_bytes=1000)
        plain = FilesDataSource([f"{server.url}{name}"], limits=limits)
        documents = [list(plain.read(unit)) for unit in plain.units()]
        source = FilesDataSource([f"{server.url}{name}"], limits=limits)
        units = source.units()
        server.requests.clear()
        for unit in [*units, *units]:
            source.expect(unit)
        _wait_for(server, min(len(units), 32))
        assert [list(source.read(unit)) for unit in units] == documents
        middle = documents[0][5].start
        source.expect(units[0], middle)
        assert list(source.read(units[0], middle)) == documents[0][5:]
        source.expect(units[0])
        source.release()
        assert list(source.read(units[0])) == documents[0]
    assert len(units) == (1 if is_packed else 50)


def test_a_file_with_long_lines_is_seldom_asked_for_more():
    """What the end of one part has shown of the lines of a file spares most later parts the wait for theirs."""
    line = json.dumps({"text": "x" * 900_000}).encode() + b"\n"
    with faulty_server(files={"/x.jsonl": line * 20}) as server:
        source = FilesDataSource([f"{server.url}/x.jsonl"], limits=Limits(unit_bytes=2 << 20))
        requests = []
        for unit in source.units():
            server.requests.clear()
            assert all(len(document.text) == 900_000 for document in source.read(unit))
            requests.append(len(server.requests))
    assert requests[0] >= 2
    assert sum(requests[1:]) <= len(requests[1:]) + 2


def test_of_many_expected_parts_the_oldest_are_given_up():
    """No more than 32 expected parts are kept: when all are read, those expected before are asked for once more."""
    lines = b"".join(b'{"text": "%6000d"}\n' % number for number in range(1000))
    with faulty_server(files={"/x.jsonl": lines}) as server:
        source = FilesDataSource([f"{server.url}/x.jsonl"], limits=Limits(unit_bytes=REMOTE_BLOCK_BYTES))
        units = source.units()[:40]
        firsts = [f"/x.jsonl bytes={max(0, unit.start - REMOTE_BLOCK_BYTES)}-" for unit in units]
        _wait_for(server, 2)  # the look at the file, and what is read ahead of it
        server.requests.clear()
        for begin, end in ((0, 8), (8, 40)):  # what is given up was asked for by then
            for unit in units[begin:end]:
                source.expect(unit)
            _wait_for(server, end)
        assert len(server.requests) == 40
        server.requests.clear()
        for unit in units:
            assert list(source.read(unit))
        again = [
            number for number, first in enumerate(firsts) if any(asked.startswith(first) for asked in server.requests)
        ]
        assert again == list(range(8))


def test_nobody_waits_long_for_the_number_of_a_line(tmp_path, monkeypatch):
    """Where lines take longer to count than a person would wait, the byte alone is told."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "good"}\n' * 6 + b"bad\n"))
    source = FilesDataSource([str(path)])
    (unit,) = source.units()
    (rejected,) = (item for item in source.read(unit) if isinstance(item, Rejected))
    assert "line 7 at byte 102" in source.tell(unit, rejected)
    monkeypatch.setattr(file_reader, "_SECONDS_TO_COUNT", 0.0)
    assert source.tell(unit, rejected) == rejected.reason


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("unit_bytes", [20, 1 << 20])
def test_the_line_of_a_bad_record_is_told(tmp_path, packed, unit_bytes):
    """Whoever ends a run over a record learns the number of its line, in whichever part of the file it lies."""
    content = b'{"text": "good"}\n' * 6 + b"bad\n"
    path = tmp_path / ("a.jsonl.gz" if packed else "a.jsonl")
    path.write_bytes(gzip.compress(content) if packed else content)
    source = FilesDataSource([str(path)], limits=Limits(unit_bytes=unit_bytes))
    found = [(unit, item) for unit in source.units() for item in source.read(unit) if isinstance(item, Rejected)]
    ((unit, rejected),) = found
    assert "line at byte 102" in rejected.reason
    assert "line 7 at byte 102" in source.tell(unit, rejected)
