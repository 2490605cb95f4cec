"""An audit file as it was written, and with any one line changed, removed, moved or added."""

from __future__ import annotations

import json
import random
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.shared.audit_log import (
    LONGEST_LINE,
    AuditLog,
    BrokenLine,
    ChainFlaw,
    ChainReport,
    new_line,
    verify_chain,
)
from holdfast.domain.errors import StateError

KEY = bytes(range(32))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
DETAILS = st.dictionaries(st.text(), VALUES, max_size=4)
keys = st.sampled_from([None, KEY])
many = settings(deadline=None, max_examples=200)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("audit") / "audit.jsonl"


def chain(events, key=None):
    """Return the lines of ``events``."""
    lines, last = [], None
    for event, details in events:
        line, last = new_line(event, details, after=last, key=key)
        lines.append(line)
    return lines


def some_lines(number, key=None):
    return chain([("CheckpointSaved", {"step": step}) for step in range(number)], key)


def verified(path, lines, **options):
    path.write_bytes(b"".join(lines))
    return verify_chain(path, **options)


def flaw_of(path, lines, **options):
    """Return the number of the first broken line and its flaw."""
    broken = verified(path, lines, **options).broken
    return broken and (broken.line, broken.flaw)


@settings(deadline=None, max_examples=50)
@given(events=st.lists(st.tuples(st.text(), DETAILS), max_size=6), key=keys)
def test_what_is_appended_is_a_sound_chain(tmp_path_factory, events, key):
    """Whatever JSON can hold is read back, each line with the hash of its canonical rest and that of the one before."""
    path = tmp_path_factory.mktemp("log") / "audit.jsonl"
    log = AuditLog(path, key=key)
    hashes = [log.append(event, details) for event, details in events]
    log.close()
    records = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert [(record["event"], record["details"]) for record in records] == events
    assert [record["sequence"] for record in records] == list(range(1, len(events) + 1))
    assert [record["previous"] for record in records] == [None, *hashes][: len(hashes)]
    for record in records:
        stated = record.pop("hash").rpartition(":")[2]
        rest = json.dumps(record, sort_keys=True, separators=(",", ":")).encode()
        assert stated == (blake3(rest, key=key) if key else blake3(rest)).hexdigest()
        assert datetime.fromisoformat(record["time"]).tzinfo == UTC
    report = verify_chain(path, key=key)
    times = [record["time"] for record in records]
    ends = (times[0], times[-1], hashes[-1]) if times else (None, None, None)
    assert report == ChainReport(len(events), *ends)


def test_a_later_writer_continues_the_chain(tmp_path):
    """A file that was closed is gone on with, and so is a log that was closed."""
    for number in range(3):
        log = AuditLog(tmp_path / "audit.jsonl", key=KEY)
        log.append("RunStarted", {"step": number})
        log.close()
        log.append("RunFinished", {"step": number})
        log.close()
    report = verify_chain(tmp_path / "audit.jsonl", key=KEY)
    assert (report.num_entries, report.broken) == (6, None)


@many
@given(number=st.integers(1, 8), key=keys, data=st.data())
def test_every_changed_byte_is_found(path, number, key, data):
    """A line of which a byte was changed, added or taken away is named, or the second one that this made of it."""
    lines = some_lines(number, key)
    line = data.draw(st.integers(0, number - 1))
    place = data.draw(st.integers(0, len(lines[line]) - 1))
    before, byte, after = lines[line][:place], lines[line][place : place + 1], lines[line][place + 1 :]
    other = data.draw(st.binary(min_size=0, max_size=3).filter(lambda other: other != byte))
    damaged = [*lines[:line], before + other + after, *lines[line + 1 :]]
    where, flaw = flaw_of(path, damaged, key=key)
    assert where in {line + 1, line + 2}
    assert flaw is ChainFlaw.CHANGED or (flaw is ChainFlaw.TORN and line == number - 1)


@many
@given(number=st.integers(2, 8), key=keys, data=st.data())
def test_every_removed_line_is_found(path, number, key, data):
    """Lines that are missing are named where they stood, the last ones by the hash that was kept elsewhere."""
    lines = some_lines(number, key)
    start = data.draw(st.integers(0, number - 1))
    end = data.draw(st.integers(start + 1, number))
    last_hash = json.loads(lines[-1])["hash"]
    rest = lines[:start] + lines[end:]
    assert flaw_of(path, rest, key=key, holding=last_hash) == (start + 1, ChainFlaw.REMOVED)
    assert flaw_of(path, rest, key=key) == ((start + 1, ChainFlaw.REMOVED) if end < number else None)


@many
@given(number=st.integers(2, 8), key=keys, data=st.data())
def test_every_swap_is_found(path, number, key, data):
    """Two lines that changed places are named at the first of them."""
    lines = some_lines(number, key)
    first = data.draw(st.integers(0, number - 2))
    second = data.draw(st.integers(first + 1, number - 1))
    lines[first], lines[second] = lines[second], lines[first]
    assert flaw_of(path, lines, key=key) == (first + 1, ChainFlaw.REORDERED)


@many
@given(number=st.integers(1, 8), key=keys, data=st.data())
def test_every_repeated_line_is_found(path, number, key, data):
    """A line that stands there twice is named at its second place, one that came too early at its first."""
    lines = some_lines(number, key)
    line = data.draw(st.integers(0, number - 1))
    place = data.draw(st.integers(0, number))
    found = flaw_of(path, [*lines[:place], lines[line], *lines[place:]], key=key)
    if place in {line, line + 1}:
        assert found == (line + 2, ChainFlaw.ADDED)
    else:
        assert found == (place + 1, ChainFlaw.ADDED if line < place else ChainFlaw.REORDERED)


def test_a_line_of_another_chain_is_found(path):
    """A line, or all lines from one on, that were written elsewhere do not continue this chain."""
    lines, others = some_lines(4), chain([("RunFinished", {})] * 4)
    assert flaw_of(path, [*lines[:2], others[2], lines[3]]) == (3, ChainFlaw.CHANGED)
    assert flaw_of(path, lines[:2] + others[2:]) == (3, ChainFlaw.CHANGED)


@pytest.mark.parametrize("garbage", [b"\n", b"{}\n", b"null\n", b"\xff\xfe\n", b'{"hash":"blake3:00"}\n', b"[" * 5000])
def test_what_is_no_entry_is_found(path, garbage):
    """Whatever else stands between the lines is named."""
    lines = some_lines(3)
    assert flaw_of(path, [*lines[:2], garbage, lines[2]]) == (3, ChainFlaw.CHANGED)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"a":1}',
        b'{"details":{},"event":"x","previous":null,"sequence":"1","time":"x"}',
        b'{"a":' + b"[" * 100_000 + b"}",
        b'{"a":' + b"9" * 5000 + b"}",
    ],
    ids=range(5),
)
def test_a_forged_line_that_is_no_entry_is_found(path, body):
    """A line that anybody gave its hash, and that says something else than an entry, is named."""
    line = body[:-1] + b',"hash":"blake3:' + blake3(body).hexdigest().encode() + b'"}\n'
    assert flaw_of(path, [line]) == (1, ChainFlaw.CHANGED)


@pytest.mark.parametrize(("stated", "flaw"), [(1, ChainFlaw.ADDED), (2, ChainFlaw.ADDED), (9, ChainFlaw.REMOVED)])
def test_a_forged_number_is_found(path, stated, flaw):
    """A line that continues the one before by its hash, but not by its number, is named."""
    first, entry = new_line("RunStarted", {}, after=None, key=None)
    second, entry = new_line("CheckpointSaved", {}, after=entry, key=None)
    third, _ = new_line("RunFinished", {}, after=replace(entry, sequence=stated - 1), key=None)
    assert flaw_of(path, [first, second, third]) == (3, flaw)


def test_only_the_key_can_forge(path):
    """Who lacks the key, or has another one, cannot write a file anew, add to it or take it for unkeyed."""
    last_hash = json.loads(some_lines(3)[-1])["hash"]
    assert flaw_of(path, some_lines(3), key=KEY) == (1, ChainFlaw.CHANGED)
    assert flaw_of(path, some_lines(3, bytes(32)), key=KEY) == (1, ChainFlaw.CHANGED)
    assert flaw_of(path, some_lines(3, KEY)) == (1, ChainFlaw.CHANGED)
    assert flaw_of(path, some_lines(3, KEY)[:2] + some_lines(3)[2:], key=KEY) == (3, ChainFlaw.CHANGED)
    assert flaw_of(path, some_lines(3), holding=last_hash) == (4, ChainFlaw.REMOVED)


def test_the_report_tells_what_is_sound_before_the_broken_line(path):
    """Up to the first broken line there are counts, times and the last hash."""
    lines = some_lines(5)
    records = [json.loads(line) for line in lines]
    report = verified(path, [*lines[:2], *lines[3:]])
    assert report == ChainReport(
        2,
        records[0]["time"],
        records[1]["time"],
        records[1]["hash"],
        BrokenLine(3, ChainFlaw.REMOVED, report.broken.reason),
    )
    assert "entry 4" in report.broken.reason


def test_a_long_file_is_verified(path):
    """A hundred thousand lines take seconds; work that grows with their square would exceed the time of a test."""
    report = verified(path, some_lines(100_000, KEY), key=KEY)
    assert (report.num_entries, report.broken) == (100_000, None)


def test_memory_does_not_grow_with_the_file(path):
    """Many lines, and one that never ends, are read in a few MiB."""
    lines = some_lines(10_000)
    path.write_bytes(b"".join([*lines[:5000], *lines[5001:], bytes(32 * LONGEST_LINE)]))
    del lines
    tracemalloc.start()
    report = verify_chain(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (report.broken.line, report.broken.flaw) == (5001, ChainFlaw.REMOVED)
    assert peak < 8 * LONGEST_LINE


def test_an_entry_beyond_reason_is_refused(tmp_path):
    """An entry that no reader would take is not written."""
    log = AuditLog(tmp_path / "audit.jsonl")
    with pytest.raises(StateError, match="too long"):
        log.append("RunFailed", {"error": "x" * LONGEST_LINE})
    log.append("RunFailed", {"error": random.Random(0).randbytes(1000).hex()})
    log.close()
    assert verify_chain(tmp_path / "audit.jsonl").num_entries == 1
