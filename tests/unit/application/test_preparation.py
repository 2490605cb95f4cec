"""Phases before the first step: what they publish, and how a request to stop ends them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from holdfast.adapters.process_group.memory import MemoryProcessGroup
from holdfast.application.inbox import Inbox
from holdfast.application.preparation import Preparation, PreparationStopped, is_stop
from holdfast.bootstrap.run_folder.shared import in_turns
from holdfast.domain.commands import StopRun
from holdfast.domain.events import PreparationEnded, PreparationProgressed, PreparationStarted
from holdfast.domain.phase import Amount, PreparationPhase

STOP = StopRun("the service shuts down", 15)


class World:
    """A preparation whose events are recorded, with the threads in which they were published."""

    def __init__(self, group=None, heard=lambda _: None, **options):
        self.inbox, self.events, self.threads, self._heard = Inbox(), [], set(), heard
        self.preparation = Preparation(self.inbox, self._record, **options)
        self.preparation.begin(group or MemoryProcessGroup())

    def _record(self, event):
        self.events.append(event)
        self.threads.add(threading.get_ident())
        self._heard(event)


def test_a_phase_is_published_with_its_progress():
    """Each activity is published once, an unchanged one once a second, and the end with the seconds of the phase."""
    now = [0.0]
    world = World(clock=lambda: now[0])
    with world.preparation.phase(PreparationPhase.TOKENS):
        for done in range(4):
            world.preparation.show("tokenizing", Amount(done, 4))
            now[0] += 0.4
    begun, *progress, ended = world.events
    assert begun == PreparationStarted(PreparationPhase.TOKENS)
    assert [(each.activity, each.done, each.total, each.unit) for each in progress] == [
        ("tokenizing", 0, 4, "B"),
        ("tokenizing", 3, 4, "B"),
    ]
    assert (progress[-1].seconds, ended.seconds) == pytest.approx((1.2, 1.6))


def test_work_is_done_apart_and_its_events_are_published_here():
    """What a phase shows in a thread of its own is published in the thread that began, while it waits."""
    is_told = threading.Event()
    world = World(heard=lambda event: isinstance(event, PreparationProgressed) and is_told.set())

    def work():
        world.preparation.show("reading", Amount(1, 2, "files"))
        assert is_told.wait(30)
        return threading.get_ident()

    with world.preparation.phase(PreparationPhase.DATA):
        worker = world.preparation.awaited(work)
    assert worker != threading.get_ident()
    assert world.threads == {threading.get_ident()}


def test_a_call_that_hangs_is_abandoned():
    """A request to stop ends the wait for a library, and what must wait for exclusive work waits for its end."""
    world, goes_on, is_free = World(), threading.Event(), threading.Event()

    def hang():
        world.inbox.post(STOP)
        goes_on.wait(60)

    with pytest.raises(PreparationStopped), world.preparation.phase(PreparationPhase.MODEL):
        world.preparation.awaited(hang, is_exclusive=True)
    world.preparation.when_free(is_free.set)
    assert not is_free.is_set()
    goes_on.set()
    assert is_free.wait(30)
    assert not any(isinstance(event, PreparationEnded) for event in world.events)


def test_an_interrupt_ends_the_work_that_it_leaves():
    """Ctrl-C in a notebook ends the preparation in its thread too, at its next look."""
    has_ended = threading.Event()

    def interrupt(_):
        raise KeyboardInterrupt

    def work():
        try:
            while not has_ended.wait(0.01):
                world.preparation.show("tokenizing")
        except PreparationStopped:
            has_ended.set()

    world = World(heard=lambda event: isinstance(event, PreparationProgressed) and interrupt(event))
    with pytest.raises(KeyboardInterrupt), world.preparation.phase(PreparationPhase.TOKENS):
        world.preparation.awaited(work)
    assert has_ended.wait(30)


def test_an_error_of_the_work_is_raised():
    """The error of a phase is that of its work, and no other run has to wait for it."""
    world, is_free = World(), threading.Event()
    with pytest.raises(ZeroDivisionError), world.preparation.phase(PreparationPhase.DATA):
        world.preparation.awaited(lambda: 1 / 0, is_exclusive=True)
    world.preparation.when_free(is_free.set)
    assert is_free.is_set()


def test_after_the_end_nothing_is_published_and_nothing_stops():
    """Later requests are those of the loop."""
    world = World()
    world.preparation.end()
    world.inbox.post(STOP)
    world.preparation.show("evaluating", 0.5)
    world.preparation.agree()
    assert world.events == []


@pytest.mark.parametrize("stopping", [0, 1, 2])
def test_a_stop_on_one_rank_ends_all(stopping):
    """Whichever rank is asked to stop while the first one works, all end together, and no later one begins the work."""
    worked = []

    def rank(group):
        world = World(group)

        def work():
            worked.append(group.rank)

        if group.rank == stopping:
            world.inbox.post(STOP)
        with pytest.raises(PreparationStopped):
            world.preparation.in_turns(partial(in_turns, group), work)
        return world.inbox.first_stop

    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(rank, MemoryProcessGroup.linked(3))] == [STOP] * 3
    assert worked == ([0] if stopping else [])


def test_a_wrapped_stop_is_a_stop():
    """A library may raise an error of its own for the one that ends its work."""
    wrapped = OSError()
    wrapped.__cause__ = PreparationStopped()
    assert is_stop(wrapped)
    assert not is_stop(OSError())
