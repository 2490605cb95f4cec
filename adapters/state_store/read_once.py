"""Checkpoints that are verified while they are read, so that a large state is read once."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, final

from blake3 import blake3

from adapters.state_store.verification import check_files, check_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from adapters.shared.file_operations import FileOperations
    from adapters.state_store.manifest import Manifest, StoredFile
    from ports.state_store import OpenFile, StateFile

_PIECE = 4 << 20
_AHEAD = 2
_LARGE = 1 << 20  # a smaller file is verified sooner than read in pieces
_PLACES = 16  # where a file is probed


def verify_while_read(
    files: FileOperations, folder: Path, manifest: Manifest, use: Callable[[Path, OpenFile], object]
) -> None:
    """Have ``use`` read ``folder``, and raise ``Defect`` if its bytes turn out to be others than those saved.

    Names, sizes and small files are verified before. That ``folder`` is damaged counts more than what ``use`` raises.
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
        reading.check()
        raise
    reading.check()


@final
class _Reading:
    def __init__(self, files: FileOperations, folder: Path, large: Mapping[str, StoredFile]) -> None:
        self._files = files
        self._folder = folder
        self._large = large
        self._hashes: dict[str, str] = {}

    @contextmanager
    def open(self, path: Path) -> Iterator[StateFile]:
        with ExitStack() as stack:
            file = HashedFile(self._files, path, stack)
            yield file
            self._hashes[path.relative_to(self._folder).as_posix()] = file.finish()

    def check(self) -> None:
        """Raise ``Defect`` unless all large files are as saved; what was not read to its end is read now."""
        for name, file in self._large.items():
            check_hash(self._files, self._folder, file, known=self._hashes.get(name))


@final
class HashedFile:
    """A file that is hashed while it is read from begin to end, closed with ``stack``.

    It is read ahead by threads, and past the system's cache unless that holds it: what is read once is not worth the
    room, and filling the cache takes longer than some disks do. Whatever is behind what was read last is read again.
    """

    def __init__(self, files: FileOperations, path: Path, stack: ExitStack) -> None:
        self._descriptor = stack.enter_context(files.open_file(path)).fileno()
        self._size = os.fstat(self._descriptor).st_size
        self._ahead = stack.enter_context(files.open_file(path)).fileno()
        if not _is_cached(self._descriptor, self._size):
            _set_direct(self._ahead, is_direct=True)
        self._pieces = self._read_ahead()
        stack.callback(self._pieces.close)
        self._piece = memoryview(b"")
        self._begin = 0
        self._hasher = blake3(max_threads=blake3.AUTO)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes as ``StateFile`` does."""
        return os.pread(self._descriptor, size, offset)

    def fill(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` as ``StateFile`` does."""
        if offset < self._begin:
            return os.preadv(self._descriptor, [target], offset)
        done = 0
        while done < len(target) and self._reach(offset + done):
            found = self._piece[offset + done - self._begin :][: len(target) - done]
            target[done : done + len(found)] = found
            done += len(found)
        return done

    def finish(self) -> str:
        """Read what is left; return what ``hash_file`` would."""
        self._reach(self._size)
        return f"blake3:{self._hasher.hexdigest()}"

    def _reach(self, offset: int) -> bool:
        """Go on to the piece that holds ``offset``; return whether there is one."""
        while offset >= self._begin + len(self._piece):
            self._begin += len(self._piece)
            self._piece = next(self._pieces, memoryview(b""))
            if not self._piece:
                return False
            self._hasher.update(self._piece)
        return True

    def _read_ahead(self) -> Generator[memoryview]:
        """Yield the pieces; each is valid until the next."""
        # maps begin with a page, as reading past the cache needs
        buffers = [memoryview(mmap.mmap(-1, _PIECE)) for _ in range(_AHEAD + 1)]
        reading: deque[Future[memoryview]] = deque()
        with ThreadPoolExecutor(_AHEAD, "read") as threads:
            for number, offset in enumerate(range(0, self._size, _PIECE)):
                reading.append(threads.submit(self._read_piece, buffers[number % len(buffers)], offset))
                if len(reading) > _AHEAD:
                    yield reading.popleft().result()
            while reading:
                yield reading.popleft().result()

    def _read_piece(self, buffer: memoryview, offset: int) -> memoryview:
        wanted, count = min(_PIECE, self._size - offset), 0
        while count < wanted:
            try:
                found = os.preadv(self._ahead, [buffer[count:]], offset + count)
            except OSError as error:
                if error.errno != errno.EINVAL or not _set_direct(self._ahead, is_direct=False):
                    raise
                continue
            if found == 0:
                break
            count += found
        return buffer[:count]


def _set_direct(descriptor: int, *, is_direct: bool) -> bool:
    """Have reads go past the system's cache or through it; return whether that is another way than before."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    wanted = flags | os.O_DIRECT if is_direct else flags & ~os.O_DIRECT
    with suppress(OSError):  # not every file system can
        fcntl.fcntl(descriptor, fcntl.F_SETFL, wanted)
        return wanted != flags
    return False


def _is_cached(descriptor: int, size: int) -> bool:
    """Return whether the system's cache holds most of a file, as it does of one that was written just now."""
    places = range(0, size, max(1, size // _PLACES))
    return sum(_is_byte_cached(descriptor, place) for place in places) > len(places) // 2


def _is_byte_cached(descriptor: int, offset: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) > 0
    except OSError:
        return False
