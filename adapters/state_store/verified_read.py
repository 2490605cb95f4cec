"""Verifies checkpoints while they are read, so that a large state is read only once."""

from __future__ import annotations

import os
import sys
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from blake3 import blake3

from holdfast.adapters.shared.files.regular_file import read_at
from holdfast.adapters.state_store.checkpoint_verification import check_hash
from holdfast.adapters.state_store.hashing import CorruptCheckpoint, CorruptionKind, hash_bytes
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from io import FileIO
    from pathlib import Path

    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.adapters.state_store.manifest import CheckpointFile
    from holdfast.ports.state_store import OpenFile, StateFile

_LARGE = 1 << 20  # smaller files are read into memory and verified before use


def verify_while_read(
    files: FileOperations, folder: Path, stored: Sequence[CheckpointFile], use: Callable[[Path, OpenFile], object]
) -> None:
    """Let ``use`` read the ``stored`` files of ``folder``; raise ``CorruptCheckpoint`` if their bytes are wrong.

    Names and sizes are already verified. A small file is verified before ``use`` gets it; a large file is hashed in the
    memory of ``use`` after the read. If files are damaged, that is raised in place of exceptions of ``use``. If the
    files are sound but ``use`` got wrong bytes, it is called once more, with each byte hashed before it gets it.
    """
    small = {file.path: read_verified(files, folder, file) for file in stored if file.size < _LARGE}
    large = [file for file in stored if file.path not in small]
    for at_once in (False, True):
        reading = _Reading(files, folder, small, at_once=at_once)
        try:
            use(folder, reading.open)
        except Exception:
            if reading.is_sound(large):
                raise
        else:
            if reading.is_sound(large):
                return
    raise CorruptCheckpoint(CorruptionKind.WRONG_HASH, "its files return different bytes each time they are read")


def read_verified(files: FileOperations, folder: Path, stored: CheckpointFile) -> bytes:
    """Return the bytes of the small file ``stored`` of ``folder``; raises ``CorruptCheckpoint`` if they are wrong."""
    for _ in range(2):
        with files.open_file(folder / stored.path) as file:
            data = file.readall()
        if hash_bytes(data) == stored.hash:
            return data
    raise CorruptCheckpoint(CorruptionKind.WRONG_HASH, f"{stored.path!r} does not have the bytes that were saved")


@final
class _Reading:
    def __init__(self, files: FileOperations, folder: Path, small: dict[str, bytes], *, at_once: bool) -> None:
        self._files = files
        self._folder = folder
        self._small = small
        self._at_once = at_once
        self._hashes: defaultdict[str, set[str]] = defaultdict(set)

    @contextmanager
    def open(self, path: Path) -> Iterator[StateFile]:
        name = path.relative_to(self._folder).as_posix()
        if name in self._small:
            yield _Bytes(self._small[name])
            return
        with ExitStack() as stack:
            file = HashedFile(self._files, path, stack, at_once=self._at_once)
            try:
                yield file
            except Exception:
                self._hashes[name] |= file.finish()  # wrong bytes may have caused it
                raise
            self._hashes[name] |= file.finish()

    def is_sound(self, stored: Sequence[CheckpointFile]) -> bool:
        """Return whether all bytes that were read are right; raise ``CorruptCheckpoint`` if a stored file is damaged.

        Files that were not read to the end are read now, and files with a wrong hash again: ``use`` may have changed
        the bytes after ``fill``.
        """
        is_sound = True
        for file in stored:
            found = self._hashes[file.path]
            if found != {file.hash}:
                check_hash(self._files, self._folder, file, 1 if found else 2)
                is_sound = is_sound and not found
        return is_sound


@final
@dataclass(frozen=True, slots=True)
class _Bytes:
    data: bytes

    def read(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]

    def fill(self, offset: int, target: memoryview) -> int:
        part = self.data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)


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
