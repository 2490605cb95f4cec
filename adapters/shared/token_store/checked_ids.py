"""Token ids in a file that is read slice by slice, each compared with what was verified before."""

from __future__ import annotations

import weakref
from io import FileIO, RawIOBase
from typing import TYPE_CHECKING, Any, final

import numpy as np
from typing_extensions import override
from xxhash import xxh3_64_digest

from holdfast.adapters.shared.files.regular_file import read_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray
    from typing_extensions import Buffer

BLOCK = 1 << 14
_DIGEST = 8
_MOST_KEPT = 4 * BLOCK


def block_digests(data: Buffer) -> bytes:
    """Return the hashes of the blocks of ``data``, 8 bytes for each 16 KiB."""
    view = memoryview(data)
    begins = range(0, len(view), BLOCK)
    return b"".join([xxh3_64_digest(view[begin : begin + BLOCK]) for begin in begins])


@final
class CheckedFile:
    """The ``size`` bytes of ``file`` from the byte ``begin`` on, which are read at any offset, from several threads.

    ``blocks`` are their ``block_digests``; None compares nothing. What differs is read once more, and then ``fail``
    returns the error to raise for the clause that says what is wrong. ``problem`` returns such a clause before each
    reading, None if there is none. ``num_hashed`` counts the bytes that were hashed. Owns ``file``.
    """

    def __init__(
        self,
        file: FileIO,
        span: tuple[int, int],
        blocks: bytes | None,
        fail: Callable[[str], Exception],
        problem: Callable[[], str | None] | None = None,
    ) -> None:
        self.begin, self.size = span
        self.blocks = blocks
        self.num_hashed = 0
        self._file = file
        self._fail = fail
        self._problem = problem
        self._kept: tuple[int, bytes] = (0, b"")
        # not at exit: another thread may still read
        weakref.finalize(self, file.close).atexit = False

    def read(self, offset: int, size: int) -> memoryview:
        """Return ``size`` bytes from ``offset`` on, all of which are within the file."""
        if self._problem is not None and (clause := self._problem()) is not None:
            raise self._fail(clause)
        begin, kept = self._kept
        if not (begin <= offset and offset + size <= begin + len(kept)):
            begin = offset // BLOCK * BLOCK
            kept = self._checked(begin, min(-(-(offset + size) // BLOCK) * BLOCK, self.size))
            if len(kept) <= _MOST_KEPT:
                self._kept = begin, kept
        return memoryview(kept)[offset - begin : offset - begin + size]

    def _checked(self, begin: int, end: int) -> bytes:
        clause = "its bytes are not those that were verified"
        wanted = None if self.blocks is None else self.blocks[begin // BLOCK * _DIGEST : -(-end // BLOCK) * _DIGEST]
        for _ in range(2):
            try:
                data = read_at(self._file.fileno(), self.begin + begin, end - begin)
            except OSError as error:
                clause = str(error)
                continue
            if len(data) < end - begin:
                clause = "it was truncated"
                continue
            if wanted is None:
                return data
            self.num_hashed += len(data)
            if block_digests(data) == wanted:
                return data
        raise self._fail(clause)


@final
class CheckedIds:
    """The ids of ``dtype`` in ``file``, or ``num_ids`` of them from the id ``first`` on; a slice is a new array."""

    def __init__(
        self, file: CheckedFile, dtype: np.dtype[np.unsignedinteger[Any]], first: int = 0, num_ids: int | None = None
    ) -> None:
        self.file = file
        self.dtype = dtype
        self._first = first
        self._num_ids = file.size // dtype.itemsize if num_ids is None else num_ids

    def __len__(self) -> int:
        return self._num_ids

    def __getitem__(self, part: slice, /) -> NDArray[np.unsignedinteger[Any]]:
        start, stop, _ = part.indices(self._num_ids)
        if stop <= start:
            return np.zeros(0, self.dtype)
        width = self.dtype.itemsize
        return np.frombuffer(self.file.read((self._first + start) * width, (stop - start) * width), self.dtype)


def read_twice(descriptor: int, offset: int, size: int) -> bytes:
    """Return what ``read_at`` returns twice. Raises ``OSError`` if that differs: no hash of these bytes is known."""
    data = read_at(descriptor, offset, size)
    if data != read_at(descriptor, offset, size):
        msg = "it reads differently each time"
        raise OSError(msg)
    return data


@final
class TwiceReadFile(RawIOBase):
    """The file ``path`` for other libraries, read by ``read_twice``."""

    def __init__(self, path: Path) -> None:
        self._file = FileIO(path)

    @override
    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = read_twice(self._file.fileno(), self._file.tell(), len(view))
        view[: len(data)] = data
        self._file.seek(len(data), 1)
        return len(data)

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def seek(self, offset: int, whence: int = 0, /) -> int:
        return self._file.seek(offset, whence)

    @override
    def close(self) -> None:
        self._file.close()
        super().close()
