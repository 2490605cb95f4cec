"""The ledger that writes calls to files first stops nothing and loses nothing."""

from __future__ import annotations

import shutil
import threading
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.ledger.memory import MemoryLedger
from holdfast.adapters.ledger.spilling import LedgerCall, SpillingLedger, decode, encode
from holdfast.domain.data.batch import UnitName
from holdfast.domain.errors import StateError
from holdfast.ports.ledger import CheckpointRecord, Rejects
from holdfast.ports.testing.ledger import plain, spans_in, steps_at


class Failing:
    """Passes calls on to a ledger in memory, once ``works`` is set; ``blocks`` makes calls wait for it."""

    def __init__(self, *, blocks=False):
        self.inner, self.works, self.blocks = MemoryLedger(), threading.Event(), blocks

    def __getattr__(self, name):
        if self.blocks:
            self.works.wait()
        if not self.works.is_set():
            msg = "the server has gone"
            raise StateError(msg)
        return getattr(self.inner, name)

    def close(self):
        pass


def spilling(inner, folder, reports, **options):
    return SpillingLedger(inner, folder / "calls", report=reports.append, **options)


def record(ledger, first, end):
    ledger.record("run", steps_at(first, end), spans_in(steps_at(first, end)))


def test_an_outage_is_reported_twice(tmp_path):
    """A database that fails stops no call; one sentence says that the ledger is behind, and one that it caught up."""
    inner, reports = Failing(), []
    with closing(spilling(inner, tmp_path, reports, patience_seconds=0.5)) as ledger:
        ledger.begin_run("run", {}, 1.0)
        for step in range(1, 6):
            record(ledger, step, step + 1)
        with pytest.raises(StateError, match=r"6 calls of the ledger wait in .*calls, because the server has gone"):
            ledger.flush()
        inner.works.set()
        ledger.flush()
        assert ledger.steps("run").step.tolist() == [1, 2, 3, 4, 5]
    assert [report.split(":")[0] for report in reports] == ["the ledger is behind", "the ledger has caught up"]
    assert not list((tmp_path / "calls").iterdir())


def test_calls_that_remain_are_passed_on_by_the_next_process(tmp_path):
    """A database that hangs does not hold up the end, and the next ledger passes the calls on before its own."""
    hanging, reports = Failing(blocks=True), []
    ledger = spilling(hanging, tmp_path, reports, patience_seconds=0.1)
    ledger.begin_run("run", {}, 1.0)
    record(ledger, 1, 4)
    ledger.close()
    assert len(reports) == 1
    assert "they are passed on when the run is started again" in reports[0]
    inner = MemoryLedger()
    with closing(spilling(inner, tmp_path, reports)) as again:
        again.roll_back("run", 2)
        again.flush()
        assert inner.steps("run").step.tolist() == [1, 2]
    hanging.works.set()


def test_a_call_that_was_recorded_before_the_kill_is_repeated_without_effect(tmp_path):
    """A file that was passed on but not removed, as by a kill in between, changes nothing the second time."""
    inner = MemoryLedger()
    with closing(spilling(Failing(), tmp_path, [], patience_seconds=0)) as ledger:
        ledger.begin_run("run", {}, 1.0)
        record(ledger, 1, 4)
        ledger.roll_back("run", 2)
    for _ in range(2):
        shutil.copytree(tmp_path / "calls", tmp_path / "again" / "calls", dirs_exist_ok=True)
        with closing(spilling(inner, tmp_path / "again", [])) as ledger:
            ledger.flush()
        assert inner.steps("run").step.tolist() == [1, 2]
        assert len(inner.steps_with(int(spans_in(steps_at(3, 4)).document[0]))) == 1


def test_a_damaged_file_is_set_aside(tmp_path):
    """A file with a byte that changed is reported and set aside, and the calls after it are passed on."""
    with closing(spilling(Failing(), tmp_path, [], patience_seconds=0)) as ledger:
        ledger.begin_run("run", {}, 1.0)
        record(ledger, 1, 2)
        record(ledger, 2, 3)
    damaged = tmp_path / "calls" / "000000000001.call"
    content = bytearray(damaged.read_bytes())
    content[200] ^= 1
    damaged.write_bytes(content)
    inner, reports = MemoryLedger(), []
    with closing(spilling(inner, tmp_path, reports)) as ledger:
        ledger.flush()
    assert inner.steps("run").step.tolist() == [2]
    assert "a call of the ledger is lost" in reports[0]
    assert [path.name for path in (tmp_path / "calls").iterdir()] == ["000000000001.damaged"]


def test_calls_that_the_disk_refuses_follow_in_order(tmp_path):
    """A call whose file cannot be written raises an error once, and is recorded as soon as the disk accepts it."""
    inner = MemoryLedger()
    with closing(spilling(inner, tmp_path, [])) as ledger:
        ledger.begin_run("run", {}, 1.0)
        ledger.flush()
        (tmp_path / "calls").rename(tmp_path / "away")
        with pytest.raises(StateError, match="cannot be written"):
            record(ledger, 1, 3)
        (tmp_path / "away").rename(tmp_path / "calls")
        ledger.roll_back("run", 1)
        ledger.flush()
        assert inner.steps("run").step.tolist() == [1]


def test_numbers_go_on_after_those_that_are_left(tmp_path):
    """A ledger never writes a file with the number of one that waits already."""
    for _ in range(3):
        with closing(spilling(Failing(), tmp_path, [], patience_seconds=0)) as ledger:
            ledger.begin_run("run", {}, 1.0)
    assert len(list((tmp_path / "calls").iterdir())) == 3


def test_half_a_file_of_a_killed_process_is_removed(tmp_path):
    """What a killed process had begun to write was never accepted, and does not stay."""
    calls = tmp_path / "calls"
    calls.mkdir()
    (calls / ".000000000007.call.new").write_bytes(b"half")
    with closing(spilling(Failing(), tmp_path, [], patience_seconds=0)) as ledger:
        ledger.begin_run("run", {}, 1.0)
    assert [path.name for path in calls.iterdir()] == ["000000000000.call"]


_UNITS = (UnitName("wéb", "a"), UnitName("wéb", "b"))


@pytest.mark.parametrize(
    "call",
    [
        LedgerCall("begin_run", ("run", {"a": [1, None, "é"]}, 1.5)),
        LedgerCall("roll_back", ("run", 7)),
        LedgerCall("checkpoint", ("run", CheckpointRecord(7, "/a", "stop", 2.5))),
    ],
)
def test_a_plain_call_is_read_as_it_was_written(call):
    """The arguments of a call without arrays come back equal."""
    again = decode(encode(call))
    assert (again.method, again.arguments) == (call.method, call.arguments)


def test_arrays_of_a_call_are_read_as_they_were_written():
    """The arrays of a call come back with their dtypes, and the names of units as names."""
    steps, spans = steps_at(1, 9), spans_in(steps_at(1, 9))
    steps.loss[0] = np.nan
    _, again, documents = decode(encode(LedgerCall("record", ("run", steps, spans)))).arguments
    assert again.loss.tobytes() == steps.loss.tobytes()
    assert plain(documents) == plain(spans)
    assert documents.document.dtype == np.uint64
    rejects = Rejects(np.array([1, 0]), np.array([3, 4]), ("a", "b"), ("c", "d"), _UNITS)
    assert plain(decode(encode(LedgerCall("reject", ("run", rejects)))).arguments[1]) == plain(rejects)


@given(data=st.data())
def test_any_damage_is_seen(data):
    """A file that lacks bytes, or has one that is different, is refused."""
    content = encode(LedgerCall("record", ("run", steps_at(1, 3), spans_in(steps_at(1, 3)))))
    place = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[place] ^= data.draw(st.integers(1, 255))
    for damaged in (bytes(changed), content[:place]):
        with pytest.raises(StateError):
            decode(damaged)
