"""Places on the network that refuse, reset, stall and cut what they send."""

from __future__ import annotations

import random
import time
from collections import deque

import fsspec
import pytest
from fsspec.core import url_to_fs

from holdfast.adapters.data_source.ranges import ReadCounter, open_ranges
from holdfast.domain.errors import DataError
from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy
from tests.support.faulty_server import RESET, SHORTEN, STALL, TRUNCATE, Fault, FaultyServer, faulty_server
from tests.support.s3_server import s3_server

CONTENT = random.Random(0).randbytes(300_000)
PATIENT = RetryPolicy(first_delay=0.01, max_delay=0.05, deadline=20)
HASTY = RetryPolicy(first_delay=0.01, max_delay=0.05, deadline=1.0)
GRACE = 60  # seconds that a busy machine may take beside the deadline; of itself a stream tries for two minutes
FAULTS = {
    **{f"status {status}": Fault(status=status) for status in (408, 429, 500, 502, 503, 504)},
    "reset": RESET,
    "stall": STALL,
    "truncated body": TRUNCATE,
    "short body": SHORTEN,
}
LASTING = ("status 503", "reset", "stall", "truncated body", "short body")


class Place:
    """A file of ``CONTENT`` at ``url`` on a server that fails as ``server`` is told to."""

    def __init__(self, url: str, server: FaultyServer) -> None:
        self.url = url
        self.server = server
        self.counter = ReadCounter()

    def read(self, policy: RetryPolicy = PATIENT, stall_seconds: float = 5) -> bytes:
        files, path = url_to_fs(self.url)
        limits = {"policy": policy, "stall_seconds": stall_seconds, "range_bytes": 65_536, "ahead": 2}
        with open_ranges(files, path, len(CONTENT), counter=self.counter, **limits) as stream:
            return stream.read()


@pytest.fixture(scope="module")
def http_place():
    with faulty_server(files={"/corpus.txt": CONTENT}) as server:
        url = f"{server.url}/corpus.txt"
        url_to_fs(url)[0].exists(url)  # a first client takes longer than the hasty ones of these tests wait
        yield url, server


@pytest.fixture(scope="module")
def s3_place():
    with s3_server() as server:
        url = server.put("corpus.txt", CONTENT)
        url_to_fs(url)[0].exists(url)
        yield url, server.proxy


@pytest.fixture(params=["http", "s3"])
def place(request):
    """Return a place that serves well until it is told otherwise."""
    url, server = request.getfixturevalue(f"{request.param}_place")
    server.behave()
    yield Place(url, server)
    server.behave()


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_that_passes_loses_and_repeats_nothing(place, fault):
    """What is read in spite of passing faults is the file, byte for byte."""
    place.server.faults = deque([fault, fault, fault])
    assert place.read(stall_seconds=0.3 if fault is STALL else 5) == CONTENT
    assert not place.server.faults


@pytest.mark.parametrize("fault", LASTING)
def test_a_fault_that_stays_is_an_error_within_the_deadline(place, fault):
    """A place that goes on failing is reported by name when the deadline has passed, and nothing hangs."""
    place.server.always = FAULTS[fault]
    start = time.monotonic()
    with pytest.raises(DataError, match=r"corpus\.txt cannot be read .*tried .* times"):
        place.read(HASTY, stall_seconds=0.1)
    assert HASTY.deadline / 2 < time.monotonic() - start < HASTY.deadline + GRACE


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_is_not_tried_again(place, status):
    """An answer that will not change is reported at once."""
    place.server.always = Fault(status=status)
    with pytest.raises(DataError, match=r"corpus\.txt cannot be read"):
        place.read()
    assert place.counter.read_retries == 0


def test_a_place_that_comes_back_can_be_read_on(place):
    """A stream that gave up reads on from where it stood once the place answers again."""
    files, path = url_to_fs(place.url)
    policy = RetryPolicy(first_delay=0.01, max_delay=0.01, deadline=0.5)
    with open_ranges(files, path, len(CONTENT), policy=policy, range_bytes=65_536, ahead=0) as stream:
        first = stream.read(65_536)
        place.server.always = Fault(status=503)
        with pytest.raises(DataError):
            stream.read(1)
        place.server.always = None
        assert first + stream.read() == CONTENT


def test_a_mixture_of_faults_loses_and_repeats_nothing(place):
    """A place where every second request fails, each time otherwise, gives the file, byte for byte."""
    faults = [*FAULTS.values()]
    place.server.faults = deque(fault for fault in faults for fault in (None, fault))
    content = b"".join(place.read(stall_seconds=0.3) for _ in range(4))
    assert content == CONTENT * 4


def test_a_port_where_nobody_listens_is_an_error_within_the_deadline():
    """A server that is gone is reported by name when the deadline has passed."""
    with faulty_server() as server:
        url = f"{server.url}/corpus.txt"
    start = time.monotonic()
    with (
        open_ranges(fsspec.filesystem("http"), url, 10, policy=HASTY) as stream,
        pytest.raises(DataError, match=r"corpus\.txt cannot be read"),
    ):
        stream.read()
    assert time.monotonic() - start < HASTY.deadline + GRACE
