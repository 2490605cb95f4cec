import threading
import time
from itertools import pairwise

from holdfast.adapters.resource_probe.memory import QUIET, MemoryResourceProbe
from holdfast.application.handlers.balance_resources import ResourceSampler
from holdfast.ports.resource_probe import ResourceProbe

GONE = "gone"


class Probe(ResourceProbe):
    """A machine whose ``sample`` is what ``look`` returns, and that remembers whether it was closed."""

    def __init__(self, look):
        self.look = look
        self.closed = 0

    def sample(self):
        return self.look()

    def close(self):
        self.closed += 1


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_samples_come_from_a_thread_of_their_own_until_it_is_closed():
    """Nothing is known before the first look, then the newest sample is, and closing ends thread and probe."""
    before = set(threading.enumerate())
    probe = Probe(lambda: (QUIET, threading.current_thread().name))
    sampler = ResourceSampler(probe, seconds=0.001)
    assert sampler.latest() is None
    sampler.start()
    until(lambda: sampler.latest() is not None)
    assert sampler.latest() == (QUIET, "resources")
    sampler.close()
    sampler.close()
    until(lambda: probe.closed)  # a thread that waits for a core is left to itself
    until(lambda: set(threading.enumerate()) <= before)
    assert probe.closed == 1


def test_a_probe_that_fails_is_told_once_and_asked_no_more():
    """The error reaches whoever asks for the sample, once; after that nothing is known."""
    looks = []

    def look():
        looks.append(None)
        raise OSError(GONE)

    sampler = ResourceSampler(Probe(look), seconds=0.001)
    sampler.start()
    error = None
    while error is None:
        try:
            sampler.latest()
        except OSError as raised:
            error = raised
    assert str(error) == GONE
    assert sampler.latest() is None
    assert len(looks) == 1
    sampler.close()


def test_the_machine_is_looked_at_no_more_often_than_it_may():
    """Between two looks lie at least so many seconds."""
    times = []
    sampler = ResourceSampler(Probe(lambda: times.append(time.monotonic()) or QUIET), seconds=0.05)
    sampler.start()
    until(lambda: len(times) >= 3)
    sampler.close()
    assert all(later - earlier >= 0.05 for earlier, later in pairwise(times))


def test_a_sampler_that_never_began_may_be_closed():
    """A run that ends before its first step leaves nothing open."""
    before = set(threading.enumerate())
    probe = Probe(MemoryResourceProbe().sample)
    sampler = ResourceSampler(probe, seconds=0.001)
    sampler.close()
    assert sampler.latest() is None
    assert probe.closed == 1
    assert set(threading.enumerate()) <= before
