"""Files that are hashed while they are read, so that the bytes in use are the bytes that were verified."""

from __future__ import annotations

import os
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, final

from blake3 import blake3

from holdfast.adapters.shared.files.regular_file import read_at
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future
    from contextlib import ExitStack
    from io import FileIO
    from pathlib import Path

    from holdfast.adapters.shared.files.file_operations import FileOperations

_PIECE = 4 << 20  # bytes that are hashed at once, at least
_MOST_PENDING = 4  # pieces that wait to be hashed
_AHEAD = 16 << 20  # bytes that the disk reads while headers are parsed


@final
class HashedFile:
    """A file that is hashed while it is read from front to back, closed with ``stack``.

    Its bytes are read in order directly into the target, so that the system reads ahead, and a thread hashes them
    there; the target must not change until ``finish``. With ``at_once`` they are hashed before they are returned.
    Earlier parts that are read again come from ``VerifiedPieces``.
    """

    def __init__(self, files: FileOperations, path: Path, stack: ExitStack, *, at_once: bool = False) -> None:
        self._files = files
        self._path = path
        self._stack = stack
        self._file = stack.enter_context(files.open_file(path))
        self._thread = stack.enter_context(ThreadPoolExecutor(1, "hash"))
        self._most_pending = 0 if at_once else _MOST_PENDING
        self._smallest = 1 if at_once else _PIECE
        self._end = 0
        self._hashed = 0  # or will be: where ``_unhashed`` begins
        self._unhashed: list[memoryview] = []
        self._hashing: deque[Future[object]] = deque()
        self._hasher = blake3(max_threads=1)  # more threads would slow down the reading
        self._peeked: list[tuple[int, bytes]] = []
        self._pieces: VerifiedPieces | None = None
        self._has_changed = False
        with suppress(OSError, AttributeError):  # a hint, which not every system supports
            os.posix_fadvise(self._file.fileno(), 0, _AHEAD, os.POSIX_FADV_WILLNEED)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes as ``StateFile`` does."""
        if offset > self._end and self._pieces is None:
            peeked = read_at(self._file.fileno(), offset, size)
            self._peeked.append((offset, peeked))  # compared with the hashed bytes later
            return peeked
        data = bytearray(size)
        return bytes(data[: self.fill(offset, memoryview(data))])

    def fill(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` as ``StateFile`` does."""
        if offset < self._end:
            if self._pieces is None:
                self._pieces = VerifiedPieces(self._stack.enter_context(self._files.open_file(self._path)), self._path)
            return self._pieces.fill(offset, target)
        self._skip(offset - self._end)
        done = 0
        while count := self._take(target[done:]):
            done += count
        return done

    def finish(self) -> set[str]:
        """Read the rest; return the hash of each reading as ``hash_file`` does, and "changed" if bytes differed."""
        self._skip(sys.maxsize)
        self._hash()
        while self._hashing:
            self._hashing.popleft().result()
        found = {f"blake3:{self._hasher.hexdigest()}"}
        if self._pieces is not None:
            found.add(self._pieces.hash)
        return found | {"changed"} if self._has_changed else found

    def _skip(self, size: int) -> None:
        while count := self._take(memoryview(bytearray(min(size, _PIECE)))):
            size -= count

    def _take(self, target: memoryview) -> int:
        """Fill ``target``, or its beginning, with the next bytes; return their number."""
        if count := self._file.readinto(target):
            self._compare(target[:count])
            self._end += count
            self._unhashed.append(target[:count])
            if self._end - self._hashed >= self._smallest:
                self._hash()
        return count

    def _compare(self, taken: memoryview) -> None:
        """Compare the bytes ``taken`` with those that ``read`` returned earlier for the same place."""
        for offset, data in self._peeked:
            first, last = max(self._end, offset), min(self._end + len(taken), offset + len(data))
            if first < last and taken[first - self._end : last - self._end] != data[first - offset : last - offset]:
                self._has_changed = True

    def _hash(self) -> None:
        """Let the thread hash the bytes read so far; small tensors are hashed together, as each task costs time."""
        self._hashing.append(self._thread.submit(self._update, self._unhashed))
        self._hashed, self._unhashed = self._end, []
        while len(self._hashing) > self._most_pending:
            self._hashing.popleft().result()

    def _update(self, pieces: Iterable[memoryview]) -> None:
        for piece in pieces:
            self._hasher.update(piece)


@final
class VerifiedPieces:
    """A file for random access: all pieces are hashed first, and compared with their hashes when they are read.

    ``hash`` is the hash of the whole file, as ``hash_file`` returns it. Raises ``StateError`` if a piece differs
    between two readings.
    """

    def __init__(self, file: FileIO, name: object) -> None:
        self._file = file
        self._name = name
        self._hashes: list[bytes] = []
        self._kept = (-1, b"")
        whole = blake3(max_threads=blake3.AUTO)
        while piece := self._read(len(self._hashes)):
            whole.update(piece)
            self._hashes.append(blake3(piece).digest())
        self.hash = f"blake3:{whole.hexdigest()}"

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes as ``StateFile`` does."""
        target = bytearray(size)
        return bytes(target[: self.fill(offset, memoryview(target))])

    def fill(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` as ``StateFile`` does."""
        done = 0
        while done < len(target):
            number, start = divmod(offset + done, _PIECE)
            part = memoryview(self._piece(number))[start : start + len(target) - done]
            if not part:
                break
            target[done : done + len(part)] = part
            done += len(part)
        return done

    def _piece(self, number: int) -> bytes:
        if number >= len(self._hashes):
            return b""
        if self._kept[0] != number:
            tries = (self._read(number) for _ in range(2))
            found = next((piece for piece in tries if blake3(piece).digest() == self._hashes[number]), None)
            if found is None:
                msg = f"{self._name} returns different bytes each time it is read: check the disk and the memory"
                raise StateError(msg)
            self._kept = (number, found)
        return self._kept[1]

    def _read(self, number: int) -> bytes:
        return read_at(self._file.fileno(), number * _PIECE, _PIECE)
