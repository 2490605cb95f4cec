"""Remote files as streams that read ahead and retry failed ranges."""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, final

from typing_extensions import override

from holdfast.adapters.data_source.remote_file import RemoteFile
from holdfast.adapters.shared.network.retry import http_status, is_transient, retry
from holdfast.domain.errors import DataError
from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy
from holdfast.domain.urls import describe

if TYPE_CHECKING:
    from concurrent.futures import Future

    from fsspec import AbstractFileSystem
    from typing_extensions import Buffer

BEYOND_BYTES = 1 << 18  # enough for the rest of most lines
_FURTHER_BYTES = 1 << 20  # enough for nearly all longer lines, so that their reader waits once
_SMALL_REST = 32  # the rest of a part that is this many times smaller than a range is fetched with the range before

RANGE_BYTES = 8 << 20
AHEAD = 4
STALL_SECONDS = 30.0

_BUFFER_BYTES = 1 << 18
_CHANGED = 412  # HTTP's "precondition failed": the file is not the requested version
_CLOSED = "the stream is closed"


@final
class ReadCounter:
    """Counts the bytes received and the retries of all streams that share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes_read = 0
        self._read_retries = 0

    @property
    def bytes_read(self) -> int:
        """Return the number of bytes received and used."""
        return self._bytes_read

    @property
    def read_retries(self) -> int:
        """Return the number of retries."""
        return self._read_retries

    def add(self, *, bytes_read: int = 0, read_retries: int = 0) -> None:
        """Add to the counts."""
        with self._lock:
            self._bytes_read += bytes_read
            self._read_retries += read_retries


def open_ranges(
    file_system: AbstractFileSystem,
    path: str,
    size: int,
    *,
    etag: str | None = None,
    policy: RetryPolicy | None = None,
    range_bytes: int = RANGE_BYTES,
    ahead: int = AHEAD,
    until: int | None = None,
    beyond: int = BEYOND_BYTES,
    stall_seconds: float = STALL_SECONDS,
    counter: ReadCounter | None = None,
) -> io.BufferedReader[Any]:
    """Return the file at ``path``, which has ``size`` bytes, as a stream with ``seek``; nothing is read yet.

    While one range of ``range_bytes`` is read, the next ``ahead`` ranges are fetched, so memory holds ``ahead + 1``
    ranges; use ``ahead=0`` for random access. ``until`` is the end of this part of the file (None: the end of the
    file). Past it, at most ``beyond`` bytes (never more than one range) are fetched ahead, for the record that crosses
    it. A range with a transient error, with too few bytes, or slower than ``stall_seconds`` (doubled at each retry, as
    the network may be slow) is fetched again under ``policy``. ``etag`` is the version from ``file_system.info``; given
    an ``etag``, S3 and HTTP refuse to return a later version. Reading raises ``DataError``, within the policy's
    deadline, if the file cannot be read or has changed. One thread at a time may read; ``close`` never waits, and
    ``raw.close`` from another thread ends a waiting read. ``raw.start`` prefetches the first range.
    """
    if range_bytes < 1 or ahead < 0:
        msg = f"ranges of {range_bytes} bytes with {ahead} ahead cannot be read: use at least 1 and 0"
        raise ValueError(msg)
    file = RemoteFile(file_system, path, etag)
    steps = RangeSteps(size, min(size, until or size), range_bytes, ahead, beyond)
    raw = _RangeStream(file, steps, policy or RetryPolicy(), stall_seconds, counter or ReadCounter())
    return io.BufferedReader(raw, min(_BUFFER_BYTES, range_bytes))


@dataclass(slots=True)
class _Range:
    begin: int
    end: int
    body: Future[bytes | memoryview]
    started: float = field(default_factory=time.monotonic)
    attempts: int = 0


class _RangeStream(io.RawIOBase):
    def __init__(
        self,
        file: RemoteFile,
        steps: RangeSteps,
        policy: RetryPolicy,
        stall_seconds: float,
        counter: ReadCounter,
    ) -> None:
        self._file = file
        self._steps = steps
        self._policy = policy
        self._stall_seconds = stall_seconds
        self._counter = counter
        self._position = 0
        self._held: tuple[int, bytes | memoryview] = (0, b"")
        self._pending: deque[_Range] = deque()
        self._closing = threading.Event()

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._steps.size}[whence]
        if position < 0:
            msg = f"no position lies before the start of {self._file.name}"
            raise ValueError(msg)
        self._position = position
        return position

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        if self._closing.is_set():
            raise ValueError(_CLOSED)
        if self._position >= self._steps.size:
            return 0
        begin, content = self._held
        if not begin <= self._position < begin + len(content):
            begin, content = self._held = self._next_range()
        target = memoryview(buffer).cast("B")
        part = memoryview(content)[self._position - begin :][: len(target)]
        target[: len(part)] = part
        self._position += len(part)
        return len(part)

    @override
    def close(self) -> None:
        self._closing.set()
        for pending in tuple(self._pending):
            pending.body.cancel()
        super().close()

    def start(self, position: int) -> None:
        """Start fetching the range after ``position``, without waiting or seeking."""
        end = self._steps.following(position, 0)
        if end is not None:
            self._pending.append(_Range(position, end, self._fetch(position, end)))

    def _next_range(self) -> tuple[int, bytes | memoryview]:
        self._held = (0, b"")  # else memory would hold one more range
        while self._pending and not self._pending[0].begin <= self._position < self._pending[0].end:
            self._pending.popleft().body.cancel()
        begin = self._pending[-1].end if self._pending else self._position
        while (end := self._steps.following(begin, len(self._pending))) is not None:
            self._pending.append(_Range(begin, end, self._fetch(begin, end)))
            begin = end
        wanted = self._pending[0]
        try:
            return wanted.begin, retry(partial(self._attempt, wanted), self._policy, is_transient, self._pause)
        except Exception as error:
            if self._closing.is_set():
                raise ValueError(_CLOSED) from error
            if isinstance(error, DataError):
                raise
            raise DataError(self._sentence(error, wanted)) from error
        finally:
            self._pending.popleft()

    def _attempt(self, wanted: _Range, remaining: float) -> bytes | memoryview:
        if wanted.attempts:
            wanted.body, wanted.started = self._fetch(wanted.begin, wanted.end), time.monotonic()
            self._counter.add(read_retries=1)
        patience = self._stall_seconds * 2**wanted.attempts
        wanted.attempts += 1
        try:
            content = wanted.body.result(max(0, min(remaining, wanted.started + patience - time.monotonic())))
        except CancelledError as error:
            msg = "the connection was dropped"
            raise ConnectionError(msg) from error
        except TimeoutError as error:
            if wanted.body.cancel():
                msg = f"{wanted.end - wanted.begin:,} bytes did not arrive in {time.monotonic() - wanted.started:.1f} s"
                raise TimeoutError(msg) from error
            raise
        self._check_length(content, wanted)
        self._counter.add(bytes_read=len(content))
        return content

    def _check_length(self, content: bytes | memoryview, wanted: _Range) -> None:
        length = wanted.end - wanted.begin
        if len(content) < length:
            msg = f"{len(content):,} of {length:,} bytes arrived"
            raise ConnectionError(msg)
        if len(content) > length:
            msg = f"{self._file.name} cannot be read in ranges, as its server sends the whole file: copy it elsewhere"
            raise DataError(msg)

    def _fetch(self, begin: int, end: int) -> Future[bytes | memoryview]:
        body = self._file.fetch(begin, end)
        if self._closing.is_set():
            body.cancel()
        return body

    def _pause(self, seconds: float) -> None:
        if self._closing.wait(seconds):
            raise ValueError(_CLOSED)

    def _sentence(self, error: Exception, wanted: _Range) -> str:
        name = self._file.name
        if (is_gone := isinstance(error, FileNotFoundError)) or http_status(error) == _CHANGED:
            change = (
                "cannot be read (it was removed since it was listed)" if is_gone else "was replaced since it was listed"
            )
            return f"{name} {change}: run the command again, and do not change the files while it runs"
        tries = f", tried {wanted.attempts} times" if wanted.attempts > 1 else ""
        cause = f"byte {wanted.begin} on: {describe(error)}{tries}"
        return f"{name} cannot be read ({cause}): check that the server responds and that you may read it"


@final
@dataclass(frozen=True, slots=True)
class RangeSteps:
    """Ranges of ``range_bytes`` of a file of ``size`` bytes, ``ahead`` of them besides the one being read.

    After ``until``, where a part ends except for its last line, only ``beyond`` bytes are fetched ahead, with the
    part's end, and ranges grow with the line.
    """

    size: int
    until: int
    range_bytes: int
    ahead: int
    beyond: int = BEYOND_BYTES

    def following(self, begin: int, pending: int) -> int | None:
        """Return the end of the range that begins at ``begin``, or None if ``pending`` ranges are enough."""
        if begin >= self.size or pending > self.ahead:
            return None
        if begin >= self.until:
            further = min(max(_FURTHER_BYTES, begin - self.until), self.range_bytes)
            return None if pending else min(begin + further, self.size)
        end = min(begin + self.range_bytes, self.until)
        if (self.until - end) * _SMALL_REST <= self.range_bytes:
            end = min(self.until + min(self.beyond, self.range_bytes), self.size)
        return end
