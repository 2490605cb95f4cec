"""Where the time of a run went."""

from __future__ import annotations

import json
import signal
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.application.handlers.record_metrics import TrackGoodput
from holdfast.domain.events import (
    CheckpointSaved,
    CompilationStarted,
    DataStalled,
    EvaluationCompleted,
    EvaluationProgressed,
    Event,
    MemoryExhausted,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
    StopRequested,
    SuiteEvaluated,
    SuiteFailed,
    TextGenerated,
)
from holdfast.domain.fault_tolerance.goodput import TimeAccount, TimeCategory, TimeSample
from holdfast.domain.training.step_outcome import DataSupply, Evaluation, Progress, StepOutcome
from tests.support.loop import Loop


def mark(began, time, step, **seconds):
    return TimeSample(began, time, step, {TimeCategory(kind): value for kind, value in seconds.items()})


def added(*marks):
    """Return the goodput after ``marks``."""
    ledger = TimeAccount()
    for one in marks:
        ledger.add(one)
    return ledger.goodput


def nonzero(goodput):
    return {str(kind): seconds for kind, seconds in goodput.seconds.items() if seconds}


def test_an_undisturbed_run_is_its_compute():
    """Of one start the share is its compute by all its seconds."""
    goodput = added(mark(100, 102, 0, start_up=2), mark(100, 110, 8, start_up=2, compute=8))
    assert nonzero(goodput) == {"start_up": 2, "compute": 8}
    assert goodput.share == pytest.approx(0.8)


def test_steps_that_are_taken_again_are_lost():
    """Another start makes the compute behind its first step lost, and the time between the two a restart."""
    goodput = added(
        mark(100, 110, 10, compute=10),
        mark(100, 120, 20, compute=20),
        mark(125, 126, 15, start_up=1),
        mark(125, 136, 25, start_up=1, compute=10),
    )
    assert nonzero(goodput) == {"compute": 25, "lost": 5, "restart": 5, "start_up": 1}
    assert goodput.starts == 2
    assert goodput.wall_seconds == 36


def test_the_time_after_a_planned_end_is_nobodys_loss():
    """Between a start that ended as planned and the next one nothing is counted."""
    ended = TimeSample(100, 110, 10, {TimeCategory.COMPUTE: 10.0}, is_planned_end=True)
    goodput = added(TimeSample.from_json(json.loads(json.dumps(ended.to_json()))), mark(1000, 1010, 20, compute=10))
    assert nonzero(goodput) == {"compute": 20}
    assert goodput.share == 1.0


@pytest.mark.parametrize(
    ("story", "is_planned"),
    [
        ([RunFinished(Progress(1))], True),
        ([StopRequested(Progress(1), "STOP", None), RunFinished(Progress(1))], True),
        ([StopRequested(Progress(1), "Ctrl-C", signal.SIGINT), RunFinished(Progress(1))], True),
        ([StopRequested(Progress(1), "preempted", signal.SIGTERM), RunFinished(Progress(1))], False),
        ([StopRequested(Progress(1), "warned", signal.SIGUSR1), RunFinished(Progress(1))], False),
        ([RunFailed(Progress(1), ValueError())], False),
        ([], False),
    ],
)
def test_only_an_end_that_somebody_wanted_is_planned(story, is_planned):
    """A spent budget, ``STOP`` and Ctrl-C are planned; a crash, a kill and a scheduler's signal are not."""
    begun = [(1, RunStarted(Progress(0))), (2, StepCompleted(Progress(1), outcome()))]
    _, kept = accounted(*begun, *((3, event) for event in story))
    assert kept[-1].is_planned_end is is_planned


def test_a_roll_back_loses_its_steps():
    """A step that falls within one start makes the compute behind it lost, once."""
    goodput = added(
        mark(0, 0, 0),
        mark(0, 10, 10, compute=10),
        mark(0, 10, 4, compute=10),
        mark(0, 12, 6, compute=12),
        mark(0, 12, 5, compute=12),
    )
    assert nonzero(goodput) == {"compute": pytest.approx(5), "lost": pytest.approx(7)}


def test_a_mark_survives_json():
    """A mark that was written and read says the same."""
    whole = mark(1.5, 2.5, 7, compute=0.25, lost=1.0)
    assert TimeSample.from_json(json.loads(json.dumps(whole.to_json()))) == whole


@given(
    st.lists(
        st.tuples(st.integers(0, 99), st.integers(0, 99), st.integers(0, 20), st.booleans()), min_size=1, max_size=20
    )
)
def test_every_second_is_counted_once(story):
    """Whatever starts and falls there are, the kinds add up to the time since the first start, and none is negative."""
    marks, now, began, spent = [], 1000.0, 1000.0, {TimeCategory.COMPUTE: 0.0, TimeCategory.SAVE: 0.0}
    for compute, save, step, is_new in story:
        if is_new and marks:
            now += save
            began, spent = now, dict.fromkeys(spent, 0.0)
        spent = {
            TimeCategory.COMPUTE: spent[TimeCategory.COMPUTE] + compute,
            TimeCategory.SAVE: spent[TimeCategory.SAVE] + save,
        }
        now += compute + save
        marks.append(TimeSample(began, now, step, spent))
    goodput = added(*marks)
    assert goodput.wall_seconds == pytest.approx(now - 1000.0, abs=1e-6)
    assert min(goodput.seconds.values()) >= -1e-9
    assert 0.0 <= goodput.share <= 1.0 + 1e-9


class Clock:
    """A clock that is told how late it is."""

    now = 50.0

    def __call__(self):
        return self.now


def outcome(wait=0.0):
    return StepOutcome([1.0], 1, 1, 1.0, 0.1, 1, 1.0, DataSupply(wait))


def accounted(*story, compile_seconds=()):
    """Return the goodput, and the marks, of events at their times after the start."""
    clock, ledger, kept, compiled = Clock(), TimeAccount(), [], iter(compile_seconds)
    account = TrackGoodput(
        ledger, kept.append, began=50.0, clock=clock, wall=lambda: 1e9, compile_seconds=lambda: next(compiled, 0.0)
    )
    for seconds, event in story:
        clock.now = 50.0 + seconds
        account(event)
    return ledger.goodput, kept


def test_each_event_says_what_the_time_before_it_was_for():
    """Start-up, evaluation, waiting for data, a save's stall and a shortage of memory are told from compute."""
    goodput, _ = accounted(
        (5, RunStarted(Progress(0))),
        (6, EvaluationProgressed(Progress(0), "", 1, 2)),
        (7, EvaluationCompleted(Progress(0), Evaluation(1.0, 1, 1))),
        (9, CompilationStarted(1, 0.0)),
        (10, StepCompleted(Progress(1), outcome(wait=1.0))),
        (14, DataStalled(Progress(1), 4.0)),
        (16, StepCompleted(Progress(2), outcome(wait=4.0))),
        (19, CheckpointSaved(Progress(2), "", "periodic", 8.0, 2.0)),
        (20, MemoryExhausted(Progress(2), 4, "")),
        (23, StepCompleted(Progress(3), outcome())),
        (24, RunFinished(Progress(3))),
    )
    assert nonzero(goodput) == {
        "start_up": 5,
        "evaluation": 2,
        "compute": 2 + 2 + 1 + 3,
        "data": 1 + 4,
        "save": 2 + 1,
        "recovery": 1,
    }


@pytest.mark.parametrize("end", [SuiteEvaluated(1, {}, 90.0, 80.0), SuiteFailed(1, "it died", 80.0)])
def test_samples_and_a_wait_for_suites_are_evaluation(end):
    """Of the time until an evaluation by suites has ended, only the wait of the run is taken from compute."""
    goodput, _ = accounted(
        (0, RunStarted(Progress(0))),
        (2, TextGenerated(Progress(0), [])),
        (5, SuiteEvaluated(0, {}, 3.0)),
        (9, StepCompleted(Progress(1), outcome())),
        (90, end),
        (91, RunFinished(Progress(1))),
    )
    assert nonzero(goodput) == {"evaluation": 2 + 80, "compute": 3 + 4 + 1, "save": 1}


def test_compiling_is_start_up():
    """The seconds of a step that went into compiling count as start-up, like those before the first step."""
    goodput, _ = accounted(
        (1, RunStarted(Progress(0))), (8, StepCompleted(Progress(1), outcome())), compile_seconds=[0.5, 5.5]
    )
    assert nonzero(goodput) == {"start_up": 6, "compute": 2}


def test_a_fall_of_the_step_is_marked_at_once():
    """What was computed up to a roll-back is counted with the step that it had come to."""
    goodput, kept = accounted(
        (0, RunStarted(Progress(0))),
        (0.1, StepCompleted(Progress(1), outcome())),
        (0.2, StepCompleted(Progress(2), outcome())),
        (0.3, RolledBack(Progress(1), 2, "why")),
    )
    assert [one.step for one in kept] == [0, 2, 1]
    assert nonzero(goodput) == {
        "compute": pytest.approx(0.1),
        "lost": pytest.approx(0.1),
        "recovery": pytest.approx(0.1),
    }


def test_marks_become_rare():
    """A long start makes few marks, whatever the number of its steps."""
    steps = [(second, StepCompleted(Progress(second), outcome())) for second in range(1, 20_000)]
    _, kept = accounted((0, RunStarted(Progress(0))), *steps)
    assert len(kept) < 3_000


def test_a_run_accounts_for_its_time():
    """A real loop's compute and start-up add up to the time that it took."""
    loop, ledger, kept = Loop(save_every=3), TimeAccount(), []
    loop.bus.subscribe(Event, TrackGoodput(ledger, kept.append, began=time.monotonic()))
    loop.run()
    assert ledger.goodput.wall_seconds == pytest.approx(kept[-1].time - kept[0].began, abs=1e-3)
    assert ledger.goodput.seconds[TimeCategory.COMPUTE] > 0
