"""Checkpoints that are verified while they are read, so that a large state is read once."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, final

import numpy as np
from blake3 import blake3

from adapters.state_store.verification import check_files, check_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping
    from pathlib import Path

    from adapters.shared.file_operations import FileOperations
    from adapters.state_store.manifest import Manifest, StoredFile
    from ports.state_store import OpenFile, StateFile

_PIECE = 2 << 20
_LARGE = 1 << 20  # a smaller file is verified sooner than read in pieces


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

    A thread reads the next piece and one hashes this one while whoever asks copies it. Through one descriptor and in
    order, so that the system reads ahead; what is behind the piece at hand is read again.
    """

    def __init__(self, files: FileOperations, path: Path, stack: ExitStack) -> None:
        self._file = stack.enter_context(files.open_file(path))
        self._pieces = self._read_ahead()
        stack.callback(self._pieces.close)
        self._piece = memoryview(b"")
        self._begin = 0
        self._hasher = blake3(max_threads=1)  # threads of its own would be in the way of what reads and copies

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes as ``StateFile`` does."""
        return os.pread(self._file.fileno(), size, offset)

    def fill(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` as ``StateFile`` does."""
        if offset < self._begin:
            return os.preadv(self._file.fileno(), [target], offset)
        done = 0
        while done < len(target) and self._reach(offset + done):
            found = self._piece[offset + done - self._begin :][: len(target) - done]
            np.copyto(np.asarray(target[done : done + len(found)]), np.asarray(found))  # without the interpreter's lock
            done += len(found)
        return done

    def finish(self) -> str:
        """Read what is left; return what ``hash_file`` would."""
        for _ in self._pieces:
            pass
        return f"blake3:{self._hasher.hexdigest()}"

    def _reach(self, offset: int) -> bool:
        """Go on to the piece that holds ``offset``; return whether there is one."""
        while offset >= self._begin + len(self._piece):
            self._begin += len(self._piece)
            self._piece = next(self._pieces, memoryview(b""))
            if not self._piece:
                return False
        return True

    def _read_ahead(self) -> Generator[memoryview]:
        """Yield the pieces, each valid until the next; all are hashed once the last was used."""
        buffer, ahead = (memoryview(bytearray(_PIECE)) for _ in range(2))
        with ThreadPoolExecutor(2, "read") as threads:
            reading = threads.submit(self._file.readinto, buffer)
            while count := reading.result():
                reading = threads.submit(self._file.readinto, ahead)
                hashing = threads.submit(self._hasher.update, buffer[:count])
                yield buffer[:count]
                hashing.result()
                buffer, ahead = ahead, buffer
