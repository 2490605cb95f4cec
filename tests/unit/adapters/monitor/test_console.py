"""What a person sees of a run."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.adapters.monitor.console import ConsoleMonitor, ShownPhase, Trend
from holdfast.domain.errors import TrainingError
from holdfast.domain.phase import Amount
from holdfast.domain.training.budget import Budget
from tests.support.consoles import FIGURES, Terminal, console_of, lines_of


def test_a_line_names_the_figures(clock):
    """A plain line holds the position, the loss, the speed and the memory in use."""
    file = io.StringIO()
    monitor = console_of(1000, None, file=file, clock=clock)
    monitor.record(12, FIGURES)
    monitor.close()
    assert lines_of(file) == ["step 12/1000 · loss 3.412 · 45,213 tokens/s · 3.0 GiB"]


def test_a_line_tells_what_was_left_out_of_the_data(clock):
    """Records that were rejected are named once there are any."""
    file = io.StringIO()
    monitor = console_of(None, None, file=file, clock=clock)
    for step, rejected in ((1, 0), (2, 1204)):
        monitor.record(step, {"loss": 1.0, "rejected": rejected})
        clock.now += 10
    monitor.close()
    assert lines_of(file) == ["step 1 · loss 1.000", "step 2 · loss 1.000 · 1,204 rejected"]


def test_a_line_at_most_a_minute(clock):
    """A file gets the first figures, then the newest once a minute, and the last."""
    file = io.StringIO()
    monitor = console_of(None, None, file=file, clock=clock)
    for step in range(1, 26):
        monitor.record(step, {"loss": 1.0})
        clock.now += 6.0
    monitor.close()
    assert lines_of(file) == [f"step {step} · loss 1.000" for step in (1, 11, 21, 25)]


def test_the_last_line_is_not_repeated(clock):
    """Figures that were just printed are not printed again at the end, however often it is closed."""
    file = io.StringIO()
    monitor = console_of(None, None, file=file, clock=clock)
    monitor.record(1, {"loss": 1.0})
    monitor.close()
    monitor.close()
    assert lines_of(file) == ["step 1 · loss 1.000"]


def test_an_evaluation_has_its_own_line(clock):
    """An evaluation is printed at once, with bits per byte where they are known."""
    file = io.StringIO()
    monitor = console_of(None, None, file=file, clock=clock)
    monitor.record(100, {"loss": 3.0})
    monitor.record(100, {"eval_loss": 3.412, "eval_bits_per_byte": 1.834})
    monitor.record(101, {"eval_loss": 3.4})
    monitor.close()
    assert lines_of(file)[1:] == [
        "step 100 · evaluation 3.412 nats/token · 1.83 bits per byte",
        "step 101 · evaluation 3.400 nats/token",
    ]


@pytest.mark.parametrize(
    ("steps", "tokens", "left"),
    [
        pytest.param(1000, None, "0:04:00 left", id="steps"),
        pytest.param(None, 100_000, "0:01:20 left", id="tokens"),
        pytest.param(1000, 100_000, "0:01:20 left", id="whichever ends first"),
    ],
)
def test_the_time_that_is_left(clock, steps, tokens, left):
    """The rest of the budget at the pace so far: of 960 steps 40, of 80,000 tokens 10,000 took ten seconds."""
    file = io.StringIO()
    monitor = console_of(steps, tokens, file=file, clock=clock)
    monitor.record(0, {"loss": 1.0, "tokens": 10_000})
    clock.now += 10.0
    monitor.record(40, {"loss": 1.0, "tokens": 20_000})
    monitor.close()
    first, second = lines_of(file)
    assert "left" not in first
    assert second.endswith(left)


def test_a_resumed_run_starts_at_its_step():
    """``rewind`` shows where the run stands before the first step is done."""
    file = Terminal()
    monitor = console_of(1000, None, file=file)
    monitor.rewind(500)
    monitor.close()
    assert "step 500/1000" in file.getvalue()


def test_loss_and_speed_are_smoothed(clock):
    """One step that is out of line moves the figures by a part of what it is away."""
    file = io.StringIO()
    monitor = console_of(None, None, file=file, clock=clock)
    for step in range(1, 31):
        clock.now += 10
        monitor.record(step, {"loss": 2.0 if step < 30 else 3.0, "tokens_per_second": 1000 if step < 30 else 100})
    monitor.close()
    loss, speed = re.fullmatch(r"step 30 · loss (\S+) · (\S+) tokens/s", lines_of(file)[-1]).groups()
    assert 2.0 < float(loss) < 2.3
    assert 300 < float(speed.replace(",", "")) < 900


def test_a_loss_that_is_no_number_is_shown(clock):
    """What a person has to see is not smoothed away, nor does it stay once it is over."""
    file = io.StringIO()
    monitor = console_of(None, None, file=file, clock=clock)
    for step, loss in enumerate([2.0, float("nan"), 2.0], start=1):
        monitor.record(step, {"loss": loss})
        clock.now += 60
    monitor.close()
    assert lines_of(file) == ["step 1 · loss 2.000", "step 2 · loss nan", "step 3 · loss 2.000"]


def test_a_phase_shows_life_in_a_terminal():
    """What goes on before and between the steps stands in the live line, with the share that is done."""
    file = Terminal()
    monitor = console_of(1000, None, file=file)
    monitor.show("tokenizing", 0.25)
    _wait_until(lambda: "tokenizing · 25%" in file.getvalue())
    monitor.show("")
    monitor.rewind(3)
    monitor.close()
    assert "step 3/1000" in file.getvalue().rpartition("tokenizing")[2]


def test_a_phase_leaves_no_line_in_a_terminal():
    """A console that has shown nothing but phases is gone when it is closed."""
    file = Terminal()
    monitor = console_of(None, None, file=file)
    monitor.show("evaluating")
    _wait_until(lambda: "evaluating" in file.getvalue())
    monitor.close()
    assert "evaluating" not in file.getvalue().rpartition("\x1b[2K")[2]


def test_a_long_phase_is_a_line_a_minute(clock):
    """A file hears of a phase that takes a second, then once a minute; of a shorter one it hears nothing."""
    file = io.StringIO()
    monitor = console_of(None, None, file=file, clock=clock)
    monitor.show("opening the data")
    monitor.show("")
    monitor.show("tokenizing", 0.1)
    for seconds, share in ((1, 0.2), (30, 0.3), (30, 0.4)):
        clock.now += seconds
        monitor.show("tokenizing", share)
        if seconds == 1 or share == 0.4:
            _wait_until(lambda share=share: f"{share:.0%}" in file.getvalue())
    monitor.close()
    told = lines_of(file)
    assert [line.split(" · ")[:3] for line in told] == [["tokenizing", "20%", "1 s"], ["tokenizing", "40%", "61 s"]]


@pytest.mark.parametrize(("later", "has_rate"), [(2.0, True), (8.0, False)])
def test_a_phase_that_stands_still_has_no_rate(clock, later, has_rate):
    """A rate of the past says nothing of the time left once nothing has happened for seconds."""
    phase = ShownPhase("loading", 0.0, Amount(0, 90e6), Amount(0, 90e6), 0.0).at(Amount(9e6, 90e6), 1.0)
    again = phase.at(Amount(9e6, 90e6), 1.0 + later)
    assert again.text(1.0 + later) == f"loading · 10% · {1 + later:.0f} s" + (" · 2.9 MiB/s · 27 s left" * has_rate)


def test_a_phase_whose_steps_are_long_has_a_rate_between_them():
    """What moves each ten seconds does not stand still after eight."""
    phase = ShownPhase("loading", 0.0, Amount(0, 90e6), Amount(0, 90e6), 0.0).at(Amount(30e6, 90e6), 10.0)
    assert phase.text(18.0).endswith("s left")
    assert not phase.text(31.0).endswith("s left")


def test_a_phase_with_an_amount_has_a_rate_and_the_time_left(clock):
    """Of 90 MB that began at 10 MB, 20 MB more in 10 s are 2 MB/s, so 60 MB take 30 s more; tokens have their unit."""
    file = io.StringIO()
    monitor = console_of(None, None, file=file, clock=clock, shortest_phase=5.0)
    monitor.show("tokenizing", Amount(10e6, 90e6))
    clock.now += 10.0
    monitor.show("tokenizing", Amount(30e6, 90e6))
    _wait_until(file.getvalue)
    monitor.show("evaluating", Amount(0, 400, "tokens"))
    clock.now += 8.0
    monitor.show("evaluating", Amount(200, 400, "tokens"))
    _wait_until(lambda: len(lines_of(file)) == 2)
    monitor.show("saving", Amount(0, None))
    clock.now += 10.0
    monitor.show("saving", Amount(123e6, None))
    _wait_until(lambda: len(lines_of(file)) == 3)
    monitor.close()
    assert lines_of(file) == [
        "tokenizing · 33% · 10 s · 1.9 MiB/s · 30 s left",
        "evaluating · 50% · 8 s · 25 tokens/s · 8 s left",
        "saving · 10 s · 11.7 MiB/s",
    ]


def test_a_quiet_console_shows_problems_only(clock):
    """Figures, phases, saves and evaluations are left out; a line about a problem is printed."""
    file = io.StringIO()
    monitor = console_of(None, None, file=file, clock=clock, is_quiet=True)
    monitor.record(1, FIGURES)
    monitor.record(1, {"eval_loss": 3.0})
    monitor.show("tokenizing", 0.1)
    clock.now += 100
    for line in ("resumed at step 3", "step 1 · checkpoint-1 saved (periodic), 1.00 s, training waited 0.10 s"):
        monitor.say(line)
    monitor.say("step 4 · NOT SAVED, training continues: the disk is full")
    monitor.close()
    assert lines_of(file) == ["step 4 · NOT SAVED, training continues: the disk is full"]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("step 4 · NOT SAVED, training continues: the disk is full", "31"),
        ("step 9 · ROLLED BACK to step 5: the loss rose", "31"),
        ("step 4 · checkpoint-4 saved (periodic), 1.00 s, training waited 0.10 s", "32"),
        ("step 4 · archived in s3://bucket/checkpoint-4, 1.00 s beside training", "32"),
        ("step 4 · evaluation 3.000 nats/token", "1;36"),
        ("resumed at step 3", None),
    ],
)
@pytest.mark.parametrize("has_colours", [True, False])
def test_colours_tell_what_a_line_is(monkeypatch, line, code, has_colours):
    """Problems are red, saves green and evaluations bold; NO_COLOR leaves no colour."""
    if not has_colours:
        monkeypatch.setenv("NO_COLOR", "1")
    file = Terminal()
    monitor = console_of(None, None, file=file)
    monitor.say(line)
    monitor.close()
    drawn = next(part for part in file.getvalue().splitlines() if line[:12] in part)
    if not has_colours:
        assert not re.search(r"\x1b\[(\d;)*3\dm", drawn)
    elif code is None:
        assert f"\x1b[{code}m" not in drawn
        assert "\x1b[3" not in drawn
    else:
        assert f"\x1b[{code}m{line[:12]}" in drawn


def test_a_sparkline_shows_the_course_of_the_loss(monkeypatch):
    """Where there is room the live line ends with the falling loss; a plain line and a narrow terminal have none."""
    for columns, has_one in ((120, True), (36, False)):
        monkeypatch.setenv("COLUMNS", str(columns))
        file = Terminal()
        monitor = console_of(1000, None, file=file)
        for step in range(1, 101):
            monitor.record(step, {"loss": 10.0 / step**0.5})
        monitor.close()
        last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue().rpartition("\r")[2]).rstrip()
        assert len(last) <= columns
        sparkline = re.search(r" ([▁▂▃▄▅▆▇█]+)$", last)
        assert (sparkline is not None) == has_one
        if sparkline is not None:
            assert (sparkline[1][0], sparkline[1][-1]) == ("█", "▁")
            assert len(sparkline[1]) == 20
            assert [*sparkline[1]] == sorted(sparkline[1], reverse=True)


@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=400), st.integers(1, 40))
def test_a_trend_is_never_longer_than_asked_for(values, width):
    """However many values there are, the course is at most as long as the room, and has the lowest and highest bar."""
    trend = Trend()
    for value in values:
        trend.add(value)
    line = trend.sparkline(width)
    assert 1 <= len(line) <= width
    assert "▁" in line
    trend.add(math.nan)
    assert trend.sparkline(width) == line


def _wait_until(happened):
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_reader_that_has_gone_does_not_end_training():
    """What training itself calls raises nothing when the console's pipe is broken, and a record reports it once."""
    reading, writing = os.pipe()
    os.close(reading)
    file = os.fdopen(writing, "w", encoding="utf-8")
    console, errors = ConsoleMonitor(Budget(10), file=file), []
    deadline = time.monotonic() + 60
    while not errors and time.monotonic() < deadline:
        console.show("evaluating", 0.5)
        console.say("a line")
        try:
            console.record(1, {"loss": 1.0})
        except TrainingError as error:
            errors.append(str(error))
        time.sleep(0.05)
    console.record(2, {"loss": 1.0})
    console.close()
    console.say("a last line")
    with contextlib.suppress(BrokenPipeError):
        file.close()
    assert len(errors) == 1
    assert "training continues without it" in errors[0]
