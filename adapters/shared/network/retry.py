"""Retries failed calls, and distinguishes transient errors from permanent ones."""

from __future__ import annotations

import errno
import random
import socket
import ssl
import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy

T = TypeVar("T")

TRANSIENT_STATUSES = {408, 429, 500, 502, 503, 504}
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, ssl.SSLCertVerificationError)
_TRANSIENT_NUMBERS = {
    *(errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.EPIPE, errno.ETIMEDOUT, errno.EAGAIN),
    *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENETRESET, socket.EAI_AGAIN),
    *(errno.EBUSY, getattr(errno, "EREMOTEIO", errno.EIO)),  # s3fs raises it for SlowDown and InternalError
}
# by name: aiohttp, botocore and urllib3 may be missing, and theirs are not all OSErrors
_TRANSIENT_NAMES = {
    *("ClientPayloadError", "ServerDisconnectedError", "ServerTimeoutError"),
    *(
        "HTTPClientError",
        "ConnectTimeoutError",
        "EndpointConnectionError",
        "IncompleteReadError",
        "ResponseParserError",
        "FlexibleChecksumError",  # the received bytes differ from those of S3
    ),
    *("IncompleteRead", "ProtocolError", "ChunkedEncodingError"),
}


def retry(
    call: Callable[[float], T],
    policy: RetryPolicy,
    is_transient: Callable[[Exception], bool],
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    rng: random.Random | None = None,
) -> T:
    """Return the result of ``call``, retried under ``policy`` after each error that ``is_transient``.

    ``call`` receives the remaining seconds. The last error is raised if it is permanent, or if the next attempt would
    start after the deadline; if the deadline ended an attempt early, the error of the attempt before it is raised.
    """
    rng = rng or random.Random()  # noqa: S311 - spreads load, guards nothing
    end = clock() + policy.deadline
    number = 0
    before: Exception | None = None
    while True:
        try:
            return call(end - clock())
        except Exception as error:
            if before is not None and isinstance(error, TimeoutError) and clock() >= end:
                raise before from before.__cause__
            pause = policy.pause(number, rng)
            if not is_transient(error) or clock() + pause >= end:
                raise
            before = error
        sleep(pause)
        number += 1


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of ``call``; raises ``TimeoutError`` after ``seconds`` and leaves its thread running."""
    result: Future[T] = Future()
    threading.Thread(target=fulfil, args=(result, call), name="within", daemon=True).start()
    try:
        return result.result(max(0, seconds))
    except TimeoutError as error:
        if result.cancel():
            msg = f"no answer came in {seconds:.1f} s"
            raise TimeoutError(msg) from error
        raise


def fulfil(result: Future[T], call: Callable[[], T]) -> None:
    """Set ``result`` to the value or error of ``call``, unless it was cancelled meanwhile."""
    try:
        settle = partial(result.set_result, call())
    except Exception as error:  # noqa: BLE001 - the waiting thread raises it
        settle = partial(result.set_exception, error)
    with suppress(InvalidStateError):
        settle()


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later: time-outs, lost connections, cut bodies, busy servers.

    The HTTP statuses 408, 429, 500, 502, 503 and 504 are transient. Covers the errors of the standard library, aiohttp,
    botocore, requests, and s3fs's translations of them.
    """
    if isinstance(error, _PERMANENT):
        return False
    if isinstance(error, (TimeoutError, ConnectionError)):  # S3 says RequestTimeout with status 400
        return True
    status = http_status(error)
    if status is not None:
        return status in TRANSIENT_STATUSES
    if isinstance(error, OSError) and error.errno in _TRANSIENT_NUMBERS:
        return True
    return any(kind.__name__ in _TRANSIENT_NAMES for kind in type(error).__mro__)


def http_status(error: BaseException) -> int | None:
    """Return the HTTP status of ``error`` or of an error that it was raised from, or None."""
    for link in _chain(error):
        response = getattr(link, "response", None)
        if isinstance(response, dict):  # botocore
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:  # aiohttp; requests
            status = getattr(link, "status", None) or getattr(response, "status_code", None)
            if status is None and type(link).__module__.startswith("gcsfs"):
                status = getattr(link, "code", None)
        if isinstance(status, int):
            return status
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__
