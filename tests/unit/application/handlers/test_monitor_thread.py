import itertools
import sys
import threading
from types import SimpleNamespace

import pytest

from holdfast.adapters.monitor.memory import MemoryMonitor, MemoryTracker
from holdfast.application.handlers import monitor_thread
from holdfast.application.handlers.monitor_thread import MonitorThread, close_all, settle_all
from holdfast.ports.monitor import EndState, EventTracker, NoteKind, RunDescription

AWAY, FULL = "the server is away", "disk full"


class History:
    """A run's record of the steps 1 to ``last`` that remembers what was sent."""

    def __init__(self, last, sent=0):
        self.last = last
        self.steps = {"tracker": sent}

    def between(self, after, last):
        return [(step, {"loss": float(step)}) for step in range(after + 1, min(last, self.last) + 1)]

    def sent(self, tracker):
        return self.steps[tracker]

    def note_sent(self, tracker, step):
        self.steps[tracker] = step


class GatedTracker(MemoryTracker):
    """A tracker that records while ``gate`` is set, and fails while ``is_broken``."""

    def __init__(self):
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.is_broken = False

    def record(self, step, metrics):
        assert self.gate.wait(60)
        self._fail()
        super().record(step, metrics)

    def begin(self, run):
        self._fail()
        super().begin(run)

    def _fail(self):
        if self.is_broken:
            raise ConnectionError(AWAY)


class CountingTracker(EventTracker):
    """A tracker that stores the kinds of events alone."""

    def __init__(self):
        self.notes = []

    def begin(self, run):
        pass

    def record(self, step, metrics):
        pass

    def note(self, step, kind, text):
        pass

    def event(self, step, name, text):
        self.notes.append((step, name, text))

    def rewind(self, step):
        pass

    def flush(self):
        pass

    def finish(self, state):
        pass

    def close(self):
        pass


@pytest.fixture
def run(tmp_path):
    return RunDescription("id", "name", tmp_path)


def started(tracker, history, run, **options):
    """Return the thread of a tracker that has begun."""
    thread = MonitorThread("tracker", tracker, history, **options)
    thread.begin(run)
    return thread


def steps(tracker):
    return [step for step, _ in tracker.records]


def test_a_tracker_gets_dropped_metrics_again(run):
    """Metrics that are dropped while the tracker hangs are sent at the next flush, each step once."""
    tracker, history = GatedTracker(), History(8)
    thread = started(tracker, history, run, most_waiting=2)
    tracker.gate.clear()
    for step in range(1, 9):
        thread.record(step, {"loss": float(step)})
    assert "the monitor tracker is 2 records behind" in str(thread.take_error())
    assert thread.take_error() is None
    tracker.gate.set()
    thread.flush(8)
    assert thread.close(60)
    assert steps(tracker) == [*range(1, 9)]
    assert history.steps == {"tracker": 8}


def test_metrics_that_are_dropped_after_a_waiting_flush_are_sent_by_the_next(run):
    """A flush sends what was dropped before it, and metrics that were dropped after it are sent by a later flush."""
    tracker, history = GatedTracker(), History(8)
    thread = started(tracker, history, run, most_waiting=2)
    tracker.gate.clear()
    for step in (1, 2, 3):
        thread.record(step, {"loss": float(step)})
    thread.flush(3)
    for step in (4, 5, 6, 7):
        thread.record(step, {"loss": float(step)})
    tracker.gate.set()
    assert thread.settle(60)
    thread.record(8, {"loss": 8.0})
    thread.flush(8)
    assert thread.close(60)
    assert steps(tracker) == [*range(1, 9)]
    assert history.steps == {"tracker": 8}


def test_lost_metrics_of_an_earlier_step_are_sent_again(run):
    """Results of a suite, which belong to a step before the last flush, are sent again if their call failed."""
    tracker, history = GatedTracker(), History(4)
    suite = (2, {"suite/own/acc": 0.5})
    thread = started(tracker, history, run)
    for step in (1, 2, 3, 4):
        thread.record(step, {"loss": float(step)})
    thread.flush(4)
    assert thread.settle(60)
    tracker.is_broken = True
    thread.record(*suite)
    assert thread.settle(60)
    tracker.is_broken = False
    recorded = [(step, {"loss": float(step)}) for step in (1, 2, 3, 4)] + [suite]
    history.between = lambda after, last: [each for each in recorded if after < each[0] <= last]
    thread.flush(4)
    assert thread.close(60)
    assert tracker.records == recorded


def test_a_tracker_that_hangs_for_long_holds_one_flush(run):
    """Flushes that wait for a tracker are replaced by the last one, so that a hanging tracker takes no more memory."""
    tracker, history = GatedTracker(), History(3)
    thread = started(tracker, history, run)
    tracker.gate.clear()
    thread.record(1, {"loss": 1.0})
    noted = []
    history.note_sent = lambda _, step: noted.append(step)
    for step in (1, 2, 3):
        thread.flush(step)
    tracker.gate.set()
    assert thread.close(60)
    assert noted == [3]


def test_a_tracker_gets_metrics_again_whose_call_failed(run):
    """Each error is reported, and the flush after the last one sends what the tracker lacks."""
    tracker, history = GatedTracker(), History(6)
    thread = started(tracker, history, run)
    thread.record(1, {"loss": 1.0})
    thread.flush(1)
    assert thread.settle(60)
    tracker.is_broken = True
    for step in (2, 3):
        thread.record(step, {"loss": float(step)})
    assert thread.settle(60)
    assert str(thread.take_error()) == "the monitor tracker failed: ConnectionError: the server is away"
    assert history.steps == {"tracker": 1}
    tracker.is_broken = False
    thread.record(4, {"loss": 4.0})
    thread.flush(4)
    assert thread.close(60)
    assert steps(tracker) == [1, 2, 3, 4]


def test_a_tracker_that_stays_away_is_reported_once(run):
    """A tracker that fails at each step and each flush is reported once until a flush succeeds."""
    tracker, history = GatedTracker(), History(4)
    thread = started(tracker, history, run, clock=itertools.count(0, 1000).__next__)
    found = []
    for step, tracker.is_broken in enumerate([True, True, False, True], start=1):
        thread.record(step, {"loss": float(step)})
        thread.flush(step)
        assert thread.settle(60)
        found.append(thread.take_error())
    assert [error is not None for error in found] == [True, False, False, True]
    assert close_all([thread], 60) == []


def test_the_pause_between_attempts_grows(run):
    """After failed flushes the sink is opened again after 30, 60 and 120 s, and in any case at the end."""
    tracker, history, now = GatedTracker(), History(0), [0.0]
    tracker.is_broken, attempts = True, []
    begin = tracker.begin
    tracker.begin = lambda described: attempts.append(now[0]) or begin(described)
    thread = MonitorThread("tracker", tracker, history, clock=lambda: now[0])
    thread.begin(run)
    for now[0] in range(0, 230, 10):
        thread.flush(0)
        assert thread.settle(60)
    assert attempts == [0.0, 0, 30, 90, 210]  # the first two: at the start and at the first flush
    thread.flush(0, is_last=True)
    thread.flush(0)  # of a checkpoint after the end, in place of the last one
    assert thread.close(60)
    assert attempts[-1] == 220


def test_a_tracker_that_cannot_begin_begins_later(run):
    """A tracker whose server is away at the start gets the description and all metrics once it is there."""
    tracker, history = GatedTracker(), History(3)
    tracker.is_broken = True
    thread = started(tracker, history, run)
    thread.rewind(0)
    for step in (1, 2, 3):
        thread.record(step, {"loss": float(step)})
    assert thread.settle(60)
    assert "the server is away" in str(thread.take_error())
    tracker.is_broken = False
    thread.flush(3)
    thread.finish(EndState.FINISHED)
    assert thread.close(60)
    assert (tracker.run, steps(tracker), tracker.end) == (run, [1, 2, 3], EndState.FINISHED)


@pytest.mark.parametrize(("sent", "expected"), [(0, [1, 2, 3, 4]), (2, [3, 4]), (7, [])])
def test_a_start_sends_what_the_tracker_lacks(run, sent, expected):
    """A run that resumes at step 4 sends the steps after the last one that the tracker is known to have."""
    tracker = MemoryTracker()
    thread = started(tracker, History(9, sent), run)
    thread.rewind(4)
    assert thread.close(60)
    assert steps(tracker) == expected


@pytest.mark.parametrize(("held", "expected"), [(0, [1, 2, 3, 4]), (1, [2, 3, 4]), (4, []), (9, [])])
def test_a_start_sends_what_the_tracker_says_that_it_lacks(run, held, expected):
    """A tracker that has fewer steps than the run knows of gets the steps after those that it has."""
    tracker = MemoryTracker()
    tracker.rewind = lambda step: min(step, held)
    thread = started(tracker, History(9, 7), run)
    thread.rewind(4)
    assert thread.close(60)
    assert steps(tracker) == expected


@pytest.mark.parametrize("late", [5, 9])
def test_metrics_of_an_earlier_step_are_known_to_be_unsent(run, late):
    """Results of suites, and steps that are taken again, are sent again after a kill until a flush has stored them."""
    tracker, history = MemoryTracker(), History(10)
    thread = started(tracker, history, run)
    for step in range(1, 11):
        thread.record(step, {"loss": float(step)})
    thread.flush(10)
    thread.record(late, {"suite/own/acc": 0.5})
    assert thread.settle(60)
    assert history.steps["tracker"] == late - 1
    thread.record(11, {"loss": 11.0})
    thread.flush(11)
    assert thread.close(60)
    assert history.steps["tracker"] == 11


def test_steps_that_are_taken_again_while_a_tracker_is_away_are_unsent(run):
    """A roll-back that a tracker does not see leaves no figures of the steps before it for good."""
    tracker, history = GatedTracker(), History(20, sent=20)
    tracker.is_broken = True
    thread = started(tracker, history, run)
    thread.rewind(10)
    for step in range(11, 16):
        thread.record(step, {"loss": 2.0})
    thread.close(60)
    assert history.steps["tracker"] == 10


def test_metrics_before_the_first_step_are_sent_once(run):
    """Metrics of step 0 that the run has recorded before a slow tracker could begin are sent once."""
    tracker, history = MemoryTracker(), History(0)
    history.between = lambda _after, _last: [(0, {"loss": 9.0})]
    thread = started(tracker, history, run)
    thread.rewind(0)
    thread.record(0, {"loss": 9.0})
    assert thread.close(60)
    assert tracker.records == [(0, {"loss": 9.0})]


def test_a_monitor_for_figures_alone_gets_nothing_twice():
    """Only trackers are sent metrics again: for the others the run waits."""
    monitor = MemoryMonitor()
    thread = MonitorThread("figures", monitor, History(9))
    thread.record(1, {"loss": 1.0})
    thread.record(2, {"loss": 2.0})
    thread.rewind(1)
    thread.flush(1)
    assert thread.settle(60)
    assert steps(monitor) == [1]


def test_a_monitor_that_hangs_is_waited_for_once():
    """After one wait in vain the run does not wait again until the monitor has caught up, also not at its end."""
    gate = threading.Event()

    class Hanging(MemoryMonitor):
        def record(self, step, metrics):
            gate.wait(60)

    thread = MonitorThread("hanging", Hanging())
    thread.record(1, {})
    thread.record(2, {})
    assert not thread.settle(0.05)
    assert thread.settle(60)
    (problem,) = close_all([thread], 60)
    assert "did not take its last metrics" in problem
    gate.set()


def test_a_monitor_that_exits_is_reported_and_called_on():
    """A monitor of another package that calls ``sys.exit`` is reported, and gets the next record all the same."""
    recorded = []

    class Exiting(MemoryMonitor):
        def record(self, step, metrics):
            recorded.append(step)
            if step == 1:
                sys.exit(3)

    thread = MonitorThread("exiting", Exiting())
    thread.record(1, {"loss": 1.0})
    thread.record(2, {"loss": 2.0})
    assert thread.settle(60)
    assert recorded == [1, 2]
    assert str(thread.take_error()) == "the monitor exiting failed: SystemExit: 3"
    assert close_all([thread], 60) == []


def test_an_error_that_cannot_be_described_is_reported():
    """An error whose text raises another error is reported by its name, and the monitor is called on."""

    class Unspeakable(Exception):
        def __str__(self):
            raise ZeroDivisionError

    class Failing(MemoryMonitor):
        def rewind(self, step):
            raise Unspeakable

    thread = MonitorThread("failing", Failing())
    thread.rewind(0)
    assert thread.settle(60)
    assert str(thread.take_error()) == "the monitor failing failed: Unspeakable"
    assert close_all([thread], 60) == []


def test_all_monitors_close_side_by_side():
    """No monitor waits for the time that another one takes, so that each has all of its own."""
    together = threading.Barrier(3)

    class Waiting(MemoryMonitor):
        def close(self):
            together.wait(60)

    assert close_all([MonitorThread(str(number), Waiting()) for number in range(3)], 60) == []


@pytest.mark.parametrize("begin", ["mark", "end"])
def test_one_monitor_costs_no_other_its_time(begin, monkeypatch):
    """Those that end in time leave the next one all of the seconds, and one that hangs is a problem of its own."""
    now, given = [0.0], []
    monkeypatch.setattr(monitor_thread, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def waiting(name, takes):
        thread = MonitorThread(name, MemoryMonitor())

        def wait(seconds):
            given.append(seconds)
            now[0] += min(takes, seconds)
            return takes <= seconds

        monkeypatch.setattr(thread, begin, lambda: wait)
        return thread

    threads = [waiting(name, takes) for name, takes in [("a", 4), ("b", 4), ("hung", 60), ("c", 0), ("d", 4)]]
    if begin == "mark":
        assert [thread.name for thread in settle_all(threads, 5)] == ["hung"]
    else:
        assert close_all(threads, 5) == ["the monitor hung did not take its last metrics within 5 s"]
    assert given == [5, 5, 5, 0, 5]


def test_closing_reports_a_monitor_that_fails():
    """An error of ``close`` is reported by name, and the other monitors are closed all the same."""

    class Failing(MemoryMonitor):
        def close(self):
            raise OSError(FULL)

    monitor = MemoryMonitor()
    threads = [MonitorThread("failing", Failing()), MonitorThread("memory", monitor)]
    assert close_all(threads, 60) == ["the monitor failing failed: OSError: disk full"]
    monitor.record(1, {})
    assert monitor.records == []


def test_an_event_reaches_a_tracker_that_knows_events_with_its_kind(run):
    """A tracker of events that has begun gets their kind and text, another a note, and other monitors get nothing."""
    tracker = CountingTracker()
    thread = MonitorThread("tracker", tracker)
    thread.event(1, "RolledBack", "too early")
    thread.begin(run)
    thread.event(2, "RolledBack", "back to step 1")
    assert thread.close(60)
    assert tracker.notes == [(2, "RolledBack", "back to step 1")]
    simple = MemoryTracker()
    thread = started(simple, None, run)
    thread.event(2, "RolledBack", "back to step 1")
    assert thread.close(60)
    assert simple.notes == [(2, NoteKind.EVENT, "back to step 1")]
    other = MonitorThread("other", MemoryMonitor())
    other.event(1, "RolledBack", "back")
    assert other.settle(0.0)
    assert other.close(20)
