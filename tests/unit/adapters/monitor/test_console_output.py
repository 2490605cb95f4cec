"""The console and its output: terminals, files, and outputs that take nothing or are gone."""

from __future__ import annotations

import io
import re
import sys
import threading
import time

import pytest

from holdfast.adapters.monitor.console import ConsoleMonitor
from holdfast.domain.errors import TrainingError
from tests.support.consoles import FIGURES, Terminal, console_of, lines_of


def test_a_file_gets_no_control_characters(clock):
    """Whatever a message or a figure contains, a file gets printable text only."""
    file = io.StringIO()
    monitor = console_of(None, 10, file=file, clock=clock)
    monitor.say("in \x1b[31mred\x07 \x9b2J and [bold]as it is[/bold]\r")
    monitor.record(1, FIGURES)
    monitor.close()
    assert lines_of(file)[0] == "in [31mred 2J and [bold]as it is[/bold]"
    assert all(character.isprintable() for line in lines_of(file) for character in line)


def test_a_dumb_terminal_is_a_file(monkeypatch, clock):
    """A terminal that cannot move its cursor gets plain lines."""
    monkeypatch.setenv("TERM", "dumb")
    file = Terminal()
    monitor = console_of(None, None, file=file, clock=clock)
    monitor.record(1, {"loss": 1.0})
    monitor.close()
    assert file.getvalue() == "step 1 · loss 1.000\n"


def test_an_old_encoding_gets_what_it_can_show(clock):
    """Characters that the output cannot encode are replaced, not raised about."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    monitor = console_of(None, None, file=file, clock=clock)
    monitor.record(1, {"loss": 1.0})
    monitor.close()
    assert raw.getvalue() == b"step 1 ? loss 1.000\n"


def test_a_terminal_is_left_clean():
    """After ``close`` the last figures stand there whole, the cursor is back, and the next print starts a new line."""
    file = Terminal()
    monitor = console_of(1000, None, file=file)
    monitor.record(999, FIGURES)
    monitor.record(1000, FIGURES)
    monitor.close()
    last, after = file.getvalue().rsplit("step 1000/1000 · loss 3.412 · 45,213 tokens/s · 3.0 GiB", 1)
    assert last.count("\x1b[?25l") == 1
    assert after.split("\n", 1)[1] == "\x1b[?25h"


def test_a_message_stands_above_the_live_line():
    """``say`` prints its text without markup, in lines of the terminal's width, and the live line comes after it."""
    file = Terminal()
    monitor = console_of(None, None, file=file)
    monitor.record(7, {"loss": 2.0})
    monitor.say("checkpoint [red]saved[/red] in " + "x" * 200)
    monitor.close()
    printed = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", file.getvalue()).split("\n")
    assert printed[0].strip() == "checkpoint [red]saved[/red] in"
    assert "".join(printed[1:3]) == "x" * 200
    assert max(map(len, printed[:3])) <= 120
    assert "step 7 · loss 2.000" in printed[3]


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_live_line_fits_its_terminal(monkeypatch, columns):
    """However narrow the terminal is, the line holds the step and the loss and is not longer; a wide one holds all."""
    monkeypatch.setenv("COLUMNS", str(columns))
    file = Terminal()
    monitor = console_of(1000, None, file=file)
    monitor.record(900, {"eval_loss": 3.0})
    monitor.record(1000, {"eval_loss": 3.5})
    monitor.record(1000, FIGURES | {"lr": 1e-3})
    monitor.close()
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue().rpartition("\r")[2]).rstrip("\n")
    assert len(last) <= columns
    assert "step 1000/1000 · loss 3.412" in last
    assert ("lr 1.0e-03" in last) == (columns >= 80)
    assert ("eval 3.500 (best 3.000)" in last) == (columns >= 120)


def test_a_plain_line_begins_with_the_time(clock):
    """In a file each line tells when it was written."""
    file = io.StringIO()
    monitor = ConsoleMonitor(None, file=file, clock=clock, close_seconds=60.0)
    monitor.say("hello")
    monitor.close()
    assert re.fullmatch(r"\d\d:\d\d:\d\d hello", lines_of(file)[0])


def test_the_standard_streams_are_put_back(monkeypatch):
    """A live line on standard error gives both streams back when it ends."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    streams = sys.stdout, sys.stderr
    monitor = console_of(None, None)
    monitor.record(1, {"loss": 2.0})
    monitor.close()
    assert (sys.stdout, sys.stderr) == streams
    assert "step 1" in terminal.getvalue()


def test_say_after_close_is_printed(clock):
    """A message that comes late is still printed."""
    file = io.StringIO()
    monitor = console_of(None, None, file=file, clock=clock)
    monitor.close()
    monitor.say("done")
    assert lines_of(file) == ["done"]


class HeldTerminal(io.StringIO):
    """Takes nothing before it is released."""

    def __init__(self):
        super().__init__()
        self.released = threading.Event()

    def write(self, text):
        self.released.wait()
        return super().write(text)


def test_a_held_output_does_not_block_the_loop(clock):
    """While nobody reads, calls return, as one that waits would do so for ever, and old lines are dropped."""
    file = HeldTerminal()
    monitor = console_of(None, None, file=file, clock=clock)
    for number in range(3000):
        monitor.say(f"line {number}")
        monitor.record(number, {"loss": 1.0})
    file.released.set()
    monitor.close()
    assert "line 2999" in lines_of(file)
    assert len(lines_of(file)) < 1100


def test_a_held_output_does_not_block_the_end(clock):
    """``close`` gives up on an output that takes nothing, after a few seconds."""
    file = HeldTerminal()
    monitor = ConsoleMonitor(None, file=file, clock=clock)
    monitor.say("never read")
    monitor.close()
    assert not file.released.is_set()
    file.released.set()


def test_an_output_that_is_gone_is_reported_once(clock):
    """A broken output raises one ``TrainingError``; after it every call is harmless."""
    file = io.StringIO()
    monitor = console_of(None, None, file=file, clock=clock)
    file.close()
    with pytest.raises(TrainingError, match="console"):
        _record_for(monitor, seconds=60.0)
    monitor.record(2, {"loss": 1.0})
    monitor.say("nobody hears this")
    assert monitor.close() is None


def _record_for(monitor, *, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        monitor.record(1, {"loss": 1.0})
        time.sleep(0.02)
