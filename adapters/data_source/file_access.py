"""Opens local and remote files as streams of bytes."""

from __future__ import annotations

import io
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, final

from fsspec.implementations.memory import MemoryFileSystem
from typing_extensions import override

from holdfast.adapters.data_source.ranges import BEYOND_BYTES, STALL_SECONDS, ReadCounter, open_ranges
from holdfast.adapters.data_source.verified_stream import ContentHashes, HashingTap, VerifiedStream, block_bytes
from holdfast.adapters.shared.files.regular_file import read_at
from holdfast.domain.errors import DataError
from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from typing_extensions import Buffer

    from holdfast.adapters.data_source.remote_file import ListedFile

_RANDOM_BYTES = 4 << 20
_MOST_EXPECTED = 32  # each holds a range, and the bytes beyond its part


@final
@dataclass(frozen=True, slots=True)
class FileAccess:
    """Access to files: the retry policy and stall limit of remote ones, and the counter of bytes read.

    What is read is compared, block by block, with what was read earlier. A block of a local file is read twice when it
    is read for the first time; with ``confirms_remote`` so is one of a remote file.
    """

    policy: RetryPolicy = field(default_factory=RetryPolicy)
    stall_seconds: float = STALL_SECONDS
    counter: ReadCounter = field(default_factory=ReadCounter)
    contents: ContentHashes = field(default_factory=ContentHashes, compare=False)
    confirms_remote: bool = False
    _expected: dict[tuple[str, int], io.BufferedReader[Any]] = field(default_factory=dict, compare=False)
    _beyond: dict[str, int] = field(default_factory=dict, compare=False)
    _lock: Lock = field(default_factory=Lock, compare=False)

    def expect(self, file: ListedFile, start: int, until: int | None, *, begin: int) -> None:
        """Begin to fetch ``file``, if it is remote, from byte ``begin`` to ``until``, to be opened at ``start`` soon.

        The file need not be opened: if more than 32 parts wait, the oldest is dropped. Errors are raised only when the
        part is read.
        """
        if file.is_local or isinstance(file.file_system, MemoryFileSystem):
            return
        with self._lock:
            if (file.path, start) not in self._expected:
                with suppress(Exception):
                    stream = self._stream(file, is_random=False, until=until)
                    stream.raw.start(begin)
                    self._expected[file.path, start] = stream
            if len(self._expected) > _MOST_EXPECTED:
                self._expected.pop(next(iter(self._expected))).close()

    def release(self) -> None:
        """Close the streams that were prefetched and never opened."""
        with self._lock:
            while self._expected:
                self._expected.popitem()[1].close()

    @contextmanager
    def opened(
        self, file: ListedFile, *, is_random: bool, start: int = 0, until: int | None = None
    ) -> Iterator[io.BufferedReader[Any]]:
        """Yield the bytes of ``file`` as stored, to be read from ``start``, with little read-ahead after ``until``.

        With ``is_random`` little is read ahead at all. Raises ``DataError`` if a local file was changed since it was
        listed.
        """
        with self._lock:
            expected = self._expected.pop((file.path, start), None)
        with expected or self._stream(file, is_random=is_random, until=until, start=start) as stream:
            if file.is_local and not file.is_unchanged():
                name = file.unit.name
                msg = f"{name} was changed since it was listed: run the command again, and leave the files unchanged"
                raise DataError(msg)
            yield stream
            if until is not None and not is_random and not file.is_local:
                self._remember(file, stream.raw.tell() - until)

    def _remember(self, file: ListedFile, beyond: int) -> None:
        """Let the next parts of ``file`` fetch ``beyond`` bytes after their end, as its lines can be that long.

        The number decays over the parts after a long line.
        """
        known = self._beyond.get(file.path, BEYOND_BYTES)
        self._beyond[file.path] = max(BEYOND_BYTES, beyond, known * 7 // 8)

    def _stream(
        self, file: ListedFile, *, is_random: bool, until: int | None, start: int = 0
    ) -> io.BufferedReader[Any]:
        if file.is_local:
            tap = None if is_random else HashingTap(self.contents, file, start, until)
            local = _LocalFile(file.path, self.counter)
            return self._verified(file, local, partial(read_at, local.fileno()), tap and tap.feed)
        if isinstance(file.file_system, MemoryFileSystem):
            # all openers of a file in memory share one handle and its position
            content = file.file_system.cat_file(file.path)
            self.counter.add(bytes_read=len(content))
            return io.BufferedReader(io.BytesIO(content))
        beyond = self._beyond.get(file.path, BEYOND_BYTES)
        ranges = self._ranges(
            file, **({"ahead": 1, "range_bytes": _RANDOM_BYTES} if is_random else {"until": until, "beyond": beyond})
        )
        return self._verified(file, ranges.detach(), lambda begin, size: self._range(file, begin, size), None)

    def _verified(
        self,
        file: ListedFile,
        raw: io.RawIOBase,
        again: Callable[[int, int], bytes],
        tap: Callable[[int, Buffer], object] | None,
    ) -> io.BufferedReader[Any]:
        is_confirmed = file.is_local or self.confirms_remote
        stream = VerifiedStream(raw, file, self.contents.blocks, again, is_confirmed=is_confirmed, tap=tap)
        return io.BufferedReader(stream, block_bytes(file))

    def _ranges(self, file: ListedFile, **how: Any) -> io.BufferedReader[Any]:
        return open_ranges(
            file.file_system,
            file.path,
            file.unit.size,
            etag=file.etag,
            policy=self.policy,
            stall_seconds=self.stall_seconds,
            counter=self.counter,
            **how,
        )

    def _range(self, file: ListedFile, begin: int, size: int) -> bytes:
        with self._ranges(file, until=begin + size, range_bytes=size, ahead=0, beyond=0) as stream:
            stream.seek(begin)
            return bytes(stream.read(size))


@final
class _LocalFile(io.FileIO):
    """Counts the bytes read."""

    def __init__(self, path: str, counter: ReadCounter) -> None:
        super().__init__(path)
        self._counter = counter

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        size = super().readinto(buffer)
        self._counter.add(bytes_read=size)
        return size
