"""The log of a run as JSON lines."""

from __future__ import annotations

import atexit
import io
import json
import math
import sys
import threading
from pathlib import Path

import pytest
import structlog

from holdfast.adapters.event_bus.memory import MemoryEventBus
from holdfast.bootstrap.process.json_log import JsonLog, LoggedFigures, _PrintedLines, log_as_json
from holdfast.configs.secret_masking import mask_text
from holdfast.domain.commands import SaveReason
from holdfast.domain.events import CheckpointFailed, StepCompleted
from holdfast.domain.training.step_outcome import Progress


def written(stream, log):
    log.flush()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_line_with_its_sentence():
    """The sentence on an event that a handler reports after it is not written again, any other message is."""
    stream, bus = io.StringIO(), MemoryEventBus()
    log = JsonLog(stream)
    log.listening(bus)
    sentence = "step 5 · NOT SAVED, training continues and the next save tries again: no room in s3://me:hunter2@bucket"
    bus.publish(CheckpointFailed(Progress(step=5), SaveReason.PERIODIC, "no room in s3://me:hunter2@bucket"))
    log.say(mask_text(sentence))
    log.say("another line")
    records = written(stream, log)
    assert [record["event"] for record in records] == ["CheckpointFailed", "message"]
    assert (records[0]["step"], records[0]["level"]) == (5, "warning")
    assert records[1]["message"] == "another line"
    assert "hunter2" not in stream.getvalue()


def test_figures_that_json_does_not_know_are_strings():
    """NaN and the infinities are strings, as in metrics.jsonl, and a number stays a number."""
    stream = io.StringIO()
    log = JsonLog(stream)
    LoggedFigures(log).record(3, {"loss": math.nan, "lr": math.inf, "tokens": 7})
    (record,) = written(stream, log)
    assert record["metrics"] == {"loss": "NaN", "lr": "Infinity", "tokens": 7}
    assert record["step"] == 3


def test_printed_lines_are_messages_of_a_level():
    """What print writes is one message, whatever its lines; its beginning says the level."""
    stream = io.StringIO()
    log = JsonLog(stream)
    lines = _PrintedLines(log, stream)
    print("one\ntwo", file=lines)
    print("error: three", file=lines)
    print("warning: four", file=lines)
    print(file=lines)
    found = [(record["level"], record["message"]) for record in written(stream, log)]
    assert found == [("info", "one\ntwo"), ("error", "three"), ("warning", "four")]


def test_a_quiet_log_has_problems_and_the_result():
    """With --quiet, lines of the level info are left out, but for the result."""
    stream = io.StringIO()
    log = JsonLog(stream, is_quiet=True)
    log.say("all is well")
    log.say("warning: it is not")
    log.write("result", {"state": "failed"})
    assert [record["event"] for record in written(stream, log)] == ["message", "result"]


def test_a_slow_reader_does_not_hold_up_who_writes():
    """While nothing is read, lines wait, the oldest are dropped, and a line says how many."""
    may_write = threading.Event()

    class Slow(io.StringIO):
        def write(self, text):
            may_write.wait(60)
            return super().write(text)

    stream = Slow()
    log = JsonLog(stream)
    for number in range(25_000):
        log.write("metrics", {"step": number})
    may_write.set()
    records = written(stream, log)
    assert records[-1]["step"] == 24_999
    (told,) = [record for record in records if record["event"] == "message"]
    assert int(told["message"].split()[0]) == 25_000 - (len(records) - 1) > 0


def test_a_print_does_not_wait_for_a_reader_that_is_behind(monkeypatch):
    """While a pipe is full, the flush of a print returns: only the end of the program waits."""
    monkeypatch.setattr("holdfast.bootstrap.process.json_log._SECONDS_TO_FLUSH", 3600)
    is_writing, may_write = threading.Event(), threading.Event()

    class Full(io.StringIO):
        def write(self, text):
            is_writing.set()
            may_write.wait()
            return super().write(text)

    stream = Full()
    log = JsonLog(stream)
    lines = _PrintedLines(log, stream)
    log.say("the first line")
    is_writing.wait()
    for number in range(3):
        print(number, file=lines, flush=True)
    assert stream.getvalue() == ""
    may_write.set()
    assert [record["message"] for record in written(stream, log)] == ["the first line", "0", "1", "2"]


def test_a_print_waits_for_a_reader_that_reads():
    """What a process that is about to end has flushed is written."""
    stream = io.StringIO()
    lines = _PrintedLines(JsonLog(stream), stream)
    print("error: no sign of life", file=lines, flush=True)
    assert json.loads(stream.getvalue())["message"] == "no sign of life"


def test_the_end_of_a_program_writes_a_line_that_has_none(standard_log):
    """A text without a newline is a message once the program ends, on both streams, and only once."""
    stream, log = standard_log
    for lines, text in zip(log._printed, ("half a line", "\nand half an error"), strict=True):
        lines.write(text)
    assert written(stream, log) == []
    log.end()
    log.end()
    assert [record["message"] for record in written(stream, log)] == ["half a line", "and half an error"]


def test_steps_are_among_the_metrics_only():
    """No line repeats a step that has a line of metrics."""
    stream = io.StringIO()
    log = JsonLog(stream)
    log.on_event(StepCompleted.__new__(StepCompleted))
    assert written(stream, log) == []


@pytest.fixture
def standard_log(monkeypatch):
    """Yield the standard output of a process and its log."""
    stream, before = io.StringIO(), structlog.get_config()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    log = log_as_json(is_quiet=False)
    yield stream, log
    atexit.unregister(log.end)
    structlog.configure(**before)


def test_what_a_library_logs_is_one_line_whatever_it_holds(standard_log):
    """Values that JSON does not know are text, a secret in a tuple is masked, and an error has its traceback."""
    stream, log = standard_log
    structlog.get_logger().debug("left out", number=1)
    structlog.get_logger().info("seen", place=Path("a/b"), sources=("s3://me:hunter2@bucket", {2}))
    try:
        {}["missing"]
    except KeyError:
        structlog.get_logger().exception("broken", number=1)
    seen, broken = written(stream, log)
    assert (seen["event"], seen["place"], seen["sources"][1]) == ("seen", "a/b", "{2}")
    assert "hunter2" not in stream.getvalue()
    assert (broken["level"], broken["number"]) == ("error", 1)
    assert broken["exception"].endswith("KeyError: 'missing'")
