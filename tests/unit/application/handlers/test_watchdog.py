"""A watchdog whose time a test tells."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.application.data.feed import Feed
from holdfast.application.handlers.watchdog import Watchdog
from holdfast.bootstrap.stages.attach.watchdog import doing_of
from holdfast.domain.commands import ReportStall
from holdfast.domain.events import Event, RunStalled, StepCompleted
from holdfast.domain.fault_tolerance.liveness import Activity, Heartbeat, Timeouts
from holdfast.domain.training.step_outcome import DataSupply, Progress, StepOutcome
from tests.support.loop import Loop

PATIENCE = Timeouts(min_seconds=10.0, factor=20.0, slow_seconds=100.0)
seconds = st.floats(0, 1e6)


class Host:
    """What a watchdog is given: a clock, everybody's heartbeats, an alarm, and what the thread does."""

    def __init__(self, rank=0):
        self.now = 0.0
        self.beats = {}
        self.rung, self.given_up = [], []
        self.doing = Activity.STEP
        self.dog = Watchdog(PATIENCE, rank, self, self, doing=lambda _: self.doing, clock=lambda: self.now)

    def tell(self, beat):
        self.beats[beat.rank] = beat

    def all(self):
        return list(self.beats.values())

    def leave(self):
        self.beats.clear()

    def ring(self, report):
        self.rung.append(report)

    def give_up(self, report):
        self.given_up.append(report)

    def step(self, number, took=0.5, wait=0.0):
        outcome = StepOutcome([1.0], 1, 1, 1.0, 0.1, 1, took, DataSupply(wait))
        self.dog(StepCompleted(Progress(number), outcome))

    def let(self, pass_seconds, peers=()):
        """Let so many seconds pass, in which ``peers`` go on beating."""
        end = self.now + pass_seconds
        while self.now < end - 1e-9:
            self.now += self.dog.interval
            for rank in peers:
                self.beats[rank] = replace(self.beats[rank], number=self.beats[rank].number + 1)
            self.dog.tick(0)


def peer(rank, step=3, doing=Activity.STEP):
    return Heartbeat(rank, 1, "host", 4000 + rank, step, doing, 0.5, 0.0)


def test_a_step_that_takes_too_long_rings_once_and_is_given_up():
    """After the limit the alarm rings once, and after as much again as a step has at least it is to give up."""
    host = Host()
    host.step(3)
    host.let(10)
    assert host.rung == []
    host.let(2)
    assert [report.reason for report in host.rung] == [
        "rank 0 has made no progress for 11 s at step 4 (taking a step); the limit is 10 s"
    ]
    host.let(8)
    assert host.given_up == []
    host.let(4)
    assert host.given_up
    assert len(host.rung) == 1


def test_a_sign_of_life_is_the_end_of_an_alarm():
    """A step that comes after the alarm begins the wait anew."""
    host = Host()
    host.step(3)
    host.let(15)
    assert len(host.rung) == 1
    host.step(4)
    host.let(10)
    assert len(host.rung) == 1
    assert host.given_up == []


def test_the_limit_is_learned():
    """Slow steps are granted twenty times their usual time, and the first one more than that."""
    host = Host()
    host.let(99)
    host.step(1, took=3.0)
    host.let(59)
    assert host.rung == []
    host.let(4)
    assert host.rung


@pytest.mark.parametrize("doing", [Activity.DATA, Activity.EVALUATION, Activity.CHECKPOINT, Activity.COMPILATION])
def test_what_is_slow_by_nature_has_more_time(doing):
    """Data, evaluation, checkpoints and compiling have a limit of their own."""
    host = Host()
    host.step(3)
    host.doing = doing
    host.let(99)
    assert host.rung == []
    host.let(5)
    assert str(doing) in host.rung[0].reason


def test_the_archive_is_waited_for():
    """Copies to a far away place take as long as they take."""
    host = Host()
    host.step(3)
    host.doing = Activity.ARCHIVE
    host.let(1000)
    assert host.rung == []


def test_a_rank_that_tells_nothing_any_more_is_named():
    """While the others beat, the rank whose heartbeat stands still is the one that is named."""
    host = Host()
    host.beats = {1: peer(1), 2: peer(2)}
    host.step(3)
    host.let(12, peers=[1])
    assert "rank 2 (process 4002 on host) sends no heartbeats any more" in host.rung[0].reason
    assert "rank 1" not in host.rung[0].reason


def test_a_rank_that_is_behind_is_named():
    """If all ranks beat, the one that has come least far is named with what it does."""
    host = Host()
    host.beats = {1: peer(1, step=2)}
    host.step(3)
    host.let(12, peers=[1])
    assert "rank 1 (process 4001 on host) is behind, at step 3 (taking a step)" in host.rung[0].reason


def test_a_peer_that_does_something_slow_is_waited_for():
    """A rank that waits in a step for one that evaluates or reads data does not hang."""
    host = Host()
    host.beats = {1: peer(1, doing=Activity.DATA)}
    host.step(3)
    host.let(99, peers=[1])
    assert host.rung == []


def test_time_in_which_the_process_was_suspended_does_not_count():
    """A process that was stopped for an hour and goes on is not taken to hang."""
    host = Host()
    host.step(3)
    host.let(5)
    host.now += 3600.0
    host.let(2)
    assert host.rung == []


def test_the_slowest_rank_is_told():
    """Among the monitors' figures is the rank whose steps, waiting included, took longest."""
    host = Host()
    host.beats = {1: replace(peer(1), step_seconds=0.5, data_seconds=1.5)}
    assert host.dog.figures() == {}
    host.step(3)
    host.let(12 * host.dog.interval, peers=[1])
    assert host.dog.figures() == {
        "slowest_rank": 1,
        "slowest_rank_seconds": 2.0,
        "median_rank_seconds": pytest.approx(1.25),
    }


def test_a_run_is_watched_from_its_start_to_its_end():
    """The thread lives as long as the loop runs, has told of itself before a step, and leaves no heartbeat behind."""
    host, loop = Host(), Loop()
    loop.bus.subscribe(Event, host.dog)
    before, watching, told = set(threading.enumerate()), set(), []
    loop.at_step(1, lambda: told.extend(host.beats))
    loop.at_step(3, lambda: watching.update(set(threading.enumerate()) - before))
    loop.run()
    assert told == [0]
    assert [thread.name for thread in watching] == ["watchdog"]
    for thread in watching:  # it may have to wait for a core before it can end
        thread.join(60)
        assert not thread.is_alive()
    assert host.beats == {}


def test_the_loop_tells_a_stall_that_it_outlived():
    """A report that the loop comes to obey is published: training went on."""
    loop = Loop()
    loop.at_step(3, lambda: loop.inbox.post(ReportStall(61.0, "why")))
    loop.run()
    assert [(event.progress.step, event.seconds, event.reason) for event in loop.published(RunStalled)] == [
        (3, 61.0, "why")
    ]


def test_the_stack_tells_what_a_thread_does():
    """A thread inside the feed waits for data, and one in none of the known places takes a step."""
    found = []

    class Stream:
        def batches(self, cursor):
            found.append(doing_of(threading.get_ident()))
            yield None

        def interrupt(self):
            pass

    Feed(Stream(), prefetch=0).next()
    assert found == [Activity.DATA]
    assert doing_of(threading.get_ident()) is Activity.STEP
    assert doing_of(-1) is Activity.STEP


@given(
    st.lists(seconds, max_size=20),
    st.sampled_from(Activity),
    st.lists(st.tuples(st.sampled_from(Activity), st.integers(0, 5)), max_size=3),
    seconds,
)
def test_patience_never_ends_before_the_least(steps, doing, others, waited):
    """Whatever the steps and the other ranks, nobody is blamed before the least time that a step has."""
    own = Heartbeat(0, 1, "host", 1, 3, doing)
    peers = [Heartbeat(rank, 1, "host", rank, step, what) for rank, (what, step) in enumerate(others, 1)]
    reason = PATIENCE.hang_reason(own, waited, steps, silent=[], others=peers)
    if waited <= PATIENCE.min_seconds or Activity.ARCHIVE in {doing, *(what for what, _ in others)}:
        assert reason is None
    elif waited > max(PATIENCE.slow_seconds, 20.0 * max(steps, default=0.0)):
        assert reason is not None


@given(st.lists(seconds, max_size=20))
def test_a_beat_survives_json(steps):
    """A beat that was written and read says the same."""
    beat = Heartbeat(1, 2, "host", 3, 4, Activity.DATA, *[*steps, 0.0, 0.0][:2])
    assert Heartbeat.from_json(beat.to_json()) == beat
