"""Checkpoints that are verified while they are read, so that a large state is read once."""

from __future__ import annotations

import os
import sys
from collections import defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, final

from blake3 import blake3

from adapters.state_store.verification import check_files, check_hash
from ports.state_store import open_plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from adapters.shared.file_operations import FileOperations
    from adapters.state_store.manifest import Manifest, StoredFile
    from ports.state_store import OpenFile, StateFile

_PIECE = 4 << 20  # at least so much is hashed at once
_MOST_PENDING = 4  # such pieces that were read and are yet to be hashed
_AHEAD = 16 << 20  # what the disk has to read while headers are parsed
_LARGE = 1 << 20  # a smaller file is verified sooner than read in pieces


def verify_while_read(
    files: FileOperations, folder: Path, manifest: Manifest, use: Callable[[Path, OpenFile], object]
) -> None:
    """Have ``use`` read ``folder``, and raise ``Defect`` if its bytes turn out to be others than those saved.

    Names, sizes and small files are verified before. That ``folder`` is damaged counts more than what ``use`` raises.
    If the files are as saved but not what ``use`` has of them, it is called again, now that they are verified.
    """
    for _, defect in check_files(files, folder, manifest, hashing=False):
        if defect is not None:
            raise defect
    large = {file.path: file for file in manifest.files if file.size >= _LARGE}
    for file in manifest.files:
        if file.path not in large:
            check_hash(files, folder, file)
    reading = _Reading(files, folder, large)
    try:
        use(folder, reading.open)
    except Exception:
        if reading.is_sound():
            raise
    else:
        if reading.is_sound():
            return
    use(folder, open_plainly)


@final
class _Reading:
    def __init__(self, files: FileOperations, folder: Path, large: Mapping[str, StoredFile]) -> None:
        self._files = files
        self._folder = folder
        self._large = large
        self._hashes: defaultdict[str, set[str]] = defaultdict(set)

    @contextmanager
    def open(self, path: Path) -> Iterator[StateFile]:
        with ExitStack() as stack:
            file = HashedFile(self._files, path, stack)
            yield file
            self._hashes[path.relative_to(self._folder).as_posix()].add(file.finish())

    def is_sound(self) -> bool:
        """Return whether all that was read is as saved, or else raise ``Defect`` if a file is not.

        What was not read to its end is read now, and again what is not as saved: it may have been changed behind
        ``fill``.
        """
        is_sound = True
        for name, file in self._large.items():
            if self._hashes[name] != {file.hash}:
                check_hash(self._files, self._folder, file)
                is_sound = is_sound and not self._hashes[name]
        return is_sound


@final
class HashedFile:
    """A file that is hashed while it is read from begin to end, closed with ``stack``.

    Its bytes go straight to where they are wanted, through one descriptor and in order, so that the system reads ahead,
    and a thread hashes them there, where they stay as they are until ``finish``. What is behind the end of the last
    ``fill`` is read again.
    """

    def __init__(self, files: FileOperations, path: Path, stack: ExitStack) -> None:
        self._file = stack.enter_context(files.open_file(path))
        self._thread = stack.enter_context(ThreadPoolExecutor(1, "hash"))
        self._end = 0
        self._hashed = 0  # or will be: where ``_unhashed`` begins
        self._unhashed: list[memoryview] = []
        self._hashing: deque[Future[object]] = deque()
        self._hasher = blake3(max_threads=1)  # threads of its own would be in the way of what reads
        with suppress(OSError, AttributeError):  # a hint, which not every system takes
            os.posix_fadvise(self._file.fileno(), 0, _AHEAD, os.POSIX_FADV_WILLNEED)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes as ``StateFile`` does."""
        return os.pread(self._file.fileno(), size, offset)

    def fill(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` as ``StateFile`` does."""
        if offset < self._end:
            return os.preadv(self._file.fileno(), [target], offset)
        self._skip(offset - self._end)
        done = 0
        while count := self._take(target[done:]):
            done += count
        return done

    def finish(self) -> str:
        """Read what is left; return what ``hash_file`` would."""
        self._skip(sys.maxsize)
        self._hash()
        for hashing in self._hashing:
            hashing.result()
        return f"blake3:{self._hasher.hexdigest()}"

    def _skip(self, size: int) -> None:
        while count := self._take(memoryview(bytearray(min(size, _PIECE)))):
            size -= count

    def _take(self, target: memoryview) -> int:
        """Fill ``target`` with what comes next, or the begin of it; return how many bytes there were."""
        if count := self._file.readinto(target):
            self._end += count
            self._unhashed.append(target[:count])
            if self._end - self._hashed >= _PIECE:
                self._hash()
        return count

    def _hash(self) -> None:
        """Have the thread hash what was read: small tensors together, as each task has its price."""
        self._hashing.append(self._thread.submit(self._update, self._unhashed))
        self._hashed, self._unhashed = self._end, []
        if len(self._hashing) > _MOST_PENDING:
            self._hashing.popleft().result()

    def _update(self, pieces: Iterable[memoryview]) -> None:
        for piece in pieces:
            self._hasher.update(piece)
