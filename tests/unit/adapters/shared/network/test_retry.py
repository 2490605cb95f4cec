"""When the same thing is tried again, and when not."""

from __future__ import annotations

import errno
import http.client
import random
import socket
import ssl
from concurrent.futures import CancelledError

import aiohttp
import botocore.exceptions
import pytest
from hypothesis import given
from hypothesis import strategies as st
from s3fs.errors import translate_boto_error
from yarl import URL

from holdfast.adapters.shared.network.retry import http_status, is_transient, retry
from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy

REQUEST = aiohttp.RequestInfo(URL("http://place/x"), "GET", {}, URL("http://place/x"))


class Clock:
    """Time that passes only by sleeping and by working."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def pass_by(self, seconds):
        self.now += seconds


def attempts(errors, clock, seconds=0.0):
    """Return a call that raises each of ``errors``, then returns how many calls there were and what each had left."""
    errors = iter(errors)
    left = []

    def call(remaining):
        left.append(remaining)
        clock.pass_by(seconds)
        for error in errors:
            raise error
        return left

    return call


def run(call, clock, policy, seed=0):
    return retry(call, policy, is_transient, sleep=clock.pass_by, clock=clock, rng=random.Random(seed))


def http_error(status):
    return aiohttp.ClientResponseError(REQUEST, (), status=status)


def s3_error(status, code):
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return botocore.exceptions.ClientError(response, "GetObject")


PASSING = [
    TimeoutError(),
    ConnectionResetError(),
    ConnectionRefusedError(),
    BrokenPipeError(),
    OSError(errno.EHOSTUNREACH, "no route"),
    socket.gaierror(socket.EAI_AGAIN, "try again"),
    http.client.RemoteDisconnected(),
    http.client.IncompleteRead(b""),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ClientPayloadError(),
    aiohttp.ServerTimeoutError(),
    aiohttp.ClientOSError(errno.ECONNRESET, "reset"),
    botocore.exceptions.ReadTimeoutError(endpoint_url="http://place"),
    botocore.exceptions.ConnectTimeoutError(endpoint_url="http://place"),
    botocore.exceptions.EndpointConnectionError(endpoint_url="http://place"),
    botocore.exceptions.ConnectionClosedError(endpoint_url="http://place"),
    botocore.exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    botocore.exceptions.ResponseStreamingError(error="cut"),
    OSError(errno.EBUSY, "SlowDown"),
    *(http_error(status) for status in (408, 429, 500, 502, 503, 504)),
    *(s3_error(status, str(status)) for status in (408, 429, 500, 502, 503, 504)),
    *(translate_boto_error(s3_error(status, str(status))) for status in (408, 429, 500, 502, 503, 504)),
    *(translate_boto_error(s3_error(503, code)) for code in ("SlowDown", "ServiceUnavailable")),
    translate_boto_error(s3_error(500, "InternalError")),
    translate_boto_error(s3_error(400, "RequestTimeout")),
]
LASTING = [
    FileNotFoundError(),
    PermissionError(),
    IsADirectoryError(),
    ValueError(),
    KeyError(),
    ssl.SSLCertVerificationError(),
    OSError(errno.EIO, "the disk is broken"),
    OSError(errno.ENOSPC, "no space"),
    socket.gaierror(socket.EAI_NONAME, "no such name"),
    botocore.exceptions.NoCredentialsError(),
    *(http_error(status) for status in (301, 400, 401, 403, 404, 410, 412, 416, 501)),
    *(translate_boto_error(s3_error(status, str(status))) for status in (400, 403, 404, 412, 416)),
    translate_boto_error(s3_error(404, "NoSuchKey")),
    translate_boto_error(s3_error(403, "AccessDenied")),
]


@pytest.mark.parametrize("error", PASSING, ids=lambda error: repr(error)[:50])
def test_errors_that_pass(error):
    """A lost connection, a time-out, a cut body or a busy server is worth another try."""
    assert is_transient(error)


@pytest.mark.parametrize("error", LASTING, ids=lambda error: repr(error)[:50])
def test_errors_that_last(error):
    """What the place will say again is not worth another try."""
    assert not is_transient(error)


def test_the_status_is_found_behind_the_error_that_hides_it():
    """A status is read from the error that another one was raised from, and no chain of causes is endless."""
    hidden = OSError("wrapped")
    hidden.__cause__ = http_error(503)
    loop = OSError("circle")
    loop.__cause__ = loop
    assert (http_status(hidden), http_status(loop), http_status(CancelledError())) == (503, None, None)


def test_tries_until_it_succeeds():
    """Each passing error leads to one more attempt, and the first success is the answer."""
    clock = Clock()
    policy = RetryPolicy(first_delay=1, factor=2, max_delay=4, deadline=60)
    left = run(attempts([TimeoutError(), ConnectionResetError(), TimeoutError()], clock), clock, policy)
    assert len(left) == 4


def test_a_lasting_error_is_raised_at_once():
    """An error that does not pass is raised as it is, without a pause."""
    clock = Clock()
    with pytest.raises(PermissionError):
        run(attempts([PermissionError()], clock), clock, RetryPolicy())
    assert clock.now == 1000


def test_the_last_error_is_raised():
    """When the deadline has passed, the error of the last attempt is raised."""
    clock = Clock()
    errors = (TimeoutError(number) for number in range(10**6))
    policy = RetryPolicy(first_delay=1, max_delay=1, deadline=5)
    with pytest.raises(TimeoutError) as failure:
        run(attempts(errors, clock, seconds=1), clock, policy)
    assert failure.value.args[0] >= 2


@given(
    policy=st.builds(
        RetryPolicy,
        first_delay=st.floats(0.001, 1),
        factor=st.floats(1, 10),
        max_delay=st.floats(1, 30),
        deadline=st.floats(0.1, 100),
    ),
    seconds=st.floats(0.01, 20),
    seed=st.integers(0, 99),
)
def test_gives_up_within_the_deadline(policy, seconds, seed):
    """Whatever the policy, no attempt starts after the deadline, and each is told how long it has."""
    clock = Clock()
    left = []

    def call(remaining):
        left.append((clock.now, remaining))
        clock.pass_by(min(seconds, remaining))
        raise TimeoutError

    with pytest.raises(TimeoutError):
        run(call, clock, policy, seed)
    assert clock.now <= 1000 + policy.deadline + 1e-6
    assert all(0 < remaining <= 1000 + policy.deadline - now + 1e-6 for now, remaining in left)


@given(retry_number=st.integers(0, 10_000), seed=st.integers(0, 99))
def test_pauses_grow_up_to_a_bound_and_are_drawn_from_all_below(retry_number, seed):
    """A pause lies between nothing and the bound of its retry, which doubles and then stays."""
    policy = RetryPolicy(first_delay=1, factor=2, max_delay=8)
    assert 0 <= policy.pause(retry_number, random.Random(seed)) <= min(8, 2 ** min(retry_number, 9))


def test_pauses_differ_between_readers():
    """Readers that failed together come back at times spread over the whole pause."""
    pauses = [RetryPolicy(first_delay=1, max_delay=1).pause(0, random.Random(seed)) for seed in range(200)]
    assert min(pauses) < 0.1
    assert max(pauses) > 0.9


@pytest.mark.parametrize(
    "numbers",
    [{"deadline": float("inf")}, {"deadline": 0}, {"factor": 0.5}, {"first_delay": -1}, {"max_delay": float("nan")}],
    ids=str,
)
def test_a_policy_without_an_end_is_refused(numbers):
    """Numbers under which trying would never end, or make no sense, are refused."""
    with pytest.raises(ValueError, match="invalid retry policy"):
        RetryPolicy(**numbers)


def test_what_the_deadline_cut_short_is_not_the_cause():
    """Of an attempt that ended with the time for all, the error before it is raised, which says more."""
    clock, busy, cut = Clock(), ConnectionResetError("busy"), TimeoutError("cut")
    with pytest.raises(ConnectionResetError, match="busy"):
        run(attempts([busy, cut], clock, seconds=3.0), clock, RetryPolicy(0.0, 1.0, 0.0, deadline=6.0))
    with pytest.raises(TimeoutError, match="cut"):
        run(attempts([cut], clock, seconds=6.0), clock, RetryPolicy(0.0, 1.0, 0.0, deadline=6.0))
