"""Records in a file: nothing whole is lost, nothing torn is kept."""

from __future__ import annotations

import contextlib
import json
import math
import resource

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.shared.files.json_lines import JsonLines
from holdfast.domain.errors import StateError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
RECORDS = st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=6)


def read(path):
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


@pytest.fixture
def lines(path):
    lines = JsonLines(path)
    yield lines
    lines.close()


@given(records=RECORDS)
@settings(deadline=None, max_examples=40)
def test_records_come_back(tmp_path_factory, records):
    """Whatever JSON can say is read back as it was, one line each."""
    path = tmp_path_factory.mktemp("lines") / "events.jsonl"
    path.touch()
    lines = JsonLines(path)
    for record in records:
        lines.append(record)
    lines.close()
    assert read(path) == records


def test_a_record_can_be_read_before_close(lines, path):
    """``append`` keeps nothing back."""
    lines.append({"step": 1})
    assert path.read_bytes() == b'{"step": 1}\n'


def test_folders_are_made(tmp_path):
    """The first record makes the folders above its file."""
    lines = JsonLines(tmp_path / "runs" / "one" / "events.jsonl")
    lines.append({"step": 1})
    lines.close()
    assert read(tmp_path / "runs" / "one" / "events.jsonl") == [{"step": 1}]


def test_nothing_is_made_before_the_first_record(lines, path):
    """A file that was only opened, cut and closed does not exist."""
    lines.cut(lambda record: True)
    lines.close()
    assert not path.exists()


def test_what_json_cannot_say_is_a_string(lines, path):
    """Not-a-number and the infinities become strings that ``float`` reads, however deep they lie."""
    lines.append({"loss": math.nan, "deep": {"list": [math.inf, (-math.inf, 1.5)]}})
    (record,) = read(path)
    assert record == {"loss": "NaN", "deep": {"list": ["Infinity", ["-Infinity", 1.5]]}}
    assert math.isnan(float(record["loss"]))
    assert float(record["deep"]["list"][1][0]) == -math.inf


def test_no_reader_needs_an_extension_of_json(lines, path):
    """A strict reader accepts every line."""

    def refuse(constant):
        raise ValueError(constant)

    lines.append({"a": math.nan, "b": math.inf, "c": "\u2028\ud800"})
    assert json.loads(path.read_text("ascii"), parse_constant=refuse)["c"] == "\u2028\ud800"


@given(cut=st.integers(0, 29))
@settings(deadline=None)
def test_append_after_a_crash(tmp_path_factory, cut):
    """A line that was torn anywhere is gone, one that only lacks its end is kept, and the next is whole."""
    path = tmp_path_factory.mktemp("lines") / "events.jsonl"
    first, second = b'{"step": 1}\n', b'{"step": 2, "a": 1}\n'
    whole = first + second
    path.write_bytes(whole[:cut])
    lines = JsonLines(path)
    lines.append({"step": 3})
    lines.close()
    survivors = (cut >= len(first) - 1) + (cut >= len(whole) - 1)
    assert read(path) == [*[{"step": 1}, {"step": 2, "a": 1}][:survivors], {"step": 3}]


def test_a_torn_line_longer_than_a_block(lines, path):
    """The end of the last record is found however far back it lies."""
    path.write_bytes(b'{"step": 1}\n' + b"x" * 200_000)
    lines.append({"step": 2})
    assert read(path) == [{"step": 1}, {"step": 2}]


def test_cut_drops_what_is_not_wanted(lines, path):
    """Only the records that ``keep`` wants stay, byte for byte, in their order, and appending goes on after them."""
    path.write_bytes(b'{"step":3}\n{ "step" : 1 }\n{"step": 2}\n')
    lines.cut(lambda record: record["step"] != 3)
    lines.append({"step": 4})
    assert path.read_bytes() == b'{ "step" : 1 }\n{"step": 2}\n{"step": 4}\n'


def test_cut_keeps_what_it_cannot_read(lines, path):
    """Whole lines that are no JSON object stay where they are."""
    strange = b"\n[1]\nhello\n" + b"\xff\xfe\n" + b"[" * 100_000 + b"\n"
    path.write_bytes(strange + b'{"step": 1}\n')
    lines.cut(lambda record: False)
    assert path.read_bytes() == strange


@given(cut=st.integers(0, 29))
@settings(deadline=None)
def test_cut_removes_a_torn_last_line(tmp_path_factory, cut):
    """A torn last line goes even if every record stays; one that only lacks its end gets it."""
    path = tmp_path_factory.mktemp("lines") / "events.jsonl"
    first, second = b'{"step": 1}\n', b'{"step": 2, "a": 1}\n'
    path.write_bytes((first + second)[:cut])
    JsonLines(path).cut(lambda record: True)
    survivors = (cut >= len(first) - 1) + (cut >= len(first + second) - 1)
    assert path.read_bytes() == b"".join([first, second][:survivors])


def test_cut_between_appends(lines, path):
    """The open file is let go of, so a record after a cut is not lost in the old file."""
    lines.append({"step": 1})
    lines.append({"step": 2})
    lines.cut(lambda record: record["step"] < 2)
    lines.append({"step": 20})
    assert read(path) == [{"step": 1}, {"step": 20}]


def test_a_cut_that_fails_changes_nothing(lines, path):
    """An error on the way leaves the file as it was and no litter."""
    path.write_bytes(b'{"step": 1}\n{"stop": 2}\n')
    with pytest.raises(KeyError):
        lines.cut(lambda record: record["step"] > 1)
    assert path.read_bytes() == b'{"step": 1}\n{"stop": 2}\n'
    assert list(path.parent.iterdir()) == [path]


def test_a_cut_keeps_the_permissions(lines, path):
    """A file that only its owner may read stays so."""
    path.write_bytes(b'{"step": 1}\n')
    path.chmod(0o600)
    lines.cut(lambda record: False)
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_the_disk_refuses_is_named(tmp_path):
    """A path that cannot be written, or cut, raises ``StateError`` with the path."""
    lines = JsonLines(tmp_path)
    with pytest.raises(StateError, match=str(tmp_path)):
        lines.append({"step": 1})
    with pytest.raises(StateError, match=str(tmp_path)):
        lines.cut(lambda record: True)


@contextlib.contextmanager
def room_for(size):
    """Have no file grow beyond ``size`` bytes within the block."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 11, 12, 20, 22, 23])  # of lines of 12 bytes: torn in each way, and not at all
@pytest.mark.parametrize("more", [0, 2])
def test_what_a_full_disk_refuses_is_written_later(lines, path, size, more):
    """Records that do not fit, or fit only in part, are told once, and written once as soon as there is room."""
    fitting = size // 12
    records = [{"step": step} for step in range(1, fitting + more + 4)]
    with room_for(size):
        for record in records[:fitting]:
            lines.append(record)
        with pytest.raises(StateError, match=r"events\.jsonl.* kept"):
            lines.append(records[fitting])
        for record in records[fitting + 1 : fitting + 1 + more]:
            lines.append(record)
    for record in records[fitting + 1 + more :]:
        lines.append(record)
    assert read(path) == records


def test_each_trouble_is_told(lines, path):
    """A disk that refuses again after it has taken records is told again."""
    for step in (1, 3):
        with room_for(0), pytest.raises(StateError):
            lines.append({"step": step})
        lines.append({"step": step + 1})
    assert [record["step"] for record in read(path)] == [1, 2, 3, 4]


def test_what_waits_is_cut_like_what_is_written(lines, path):
    """Records that still wait for room, one of them written in part, are cut and written like the others."""
    lines.append({"step": 1})
    with room_for(23):  # all but the line's end, which is a record for whoever reads it
        with pytest.raises(StateError):
            lines.append({"step": 2})
        lines.append({"step": 3})
    lines.cut(lambda record: record["step"] < 3)
    lines.append({"step": 4})
    assert [record["step"] for record in read(path)] == [1, 2, 4]


def test_what_waits_is_bounded(path, caplog):
    """Beyond ``most_waiting`` bytes records are lost, which is told once and at the end with their number."""
    lines = JsonLines(path, most_waiting=30)
    with room_for(0):
        with pytest.raises(StateError, match="kept"):
            lines.append({"step": 1})
        lines.append({"step": 2})
        with pytest.raises(StateError, match="lost"):
            lines.append({"step": 3})
        lines.append({"step": 4})
    lines.append({"step": 5})
    lines.close()
    assert [record["step"] for record in read(path)] == [1, 2, 5]
    assert "2 records of" in caplog.text


def test_what_cannot_be_written_in_the_end_is_told(path, caplog):
    """Records that still wait when the file is closed are told as lost, if the disk still refuses them."""
    lines = JsonLines(path)
    with room_for(0):
        with pytest.raises(StateError):
            lines.append({"step": 1})
        lines.close()
    assert "1 record of" in caplog.text
    lines.append({"step": 2})
    lines.close()
    assert read(path) == [{"step": 2}]
