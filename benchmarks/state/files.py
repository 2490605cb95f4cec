"""Files below the ways: written and read as plainly as can be, dropped from memory, and on a slow disk."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, final

import numpy as np
from blake3 import blake3
from typing_extensions import override

from holdfast.adapters.shared.files.file_operations import FileOperations

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import FileIO
    from pathlib import Path

    from typing_extensions import Buffer

PIECE = 4 << 20


def write_raw(path: Path, data: memoryview) -> str:
    """Write ``data`` to a new file in pieces, each hashed before, and make it durable; return the hash."""
    hasher = blake3(max_threads=blake3.AUTO)
    with path.open("xb", buffering=0) as file:
        for start in range(0, len(data), PIECE):
            rest = data[start : start + PIECE]
            hasher.update(rest)
            while rest:
                rest = rest[file.write(rest) :]
        os.fsync(file.fileno())
    return hasher.hexdigest()


def read_raw(folder: Path, buffer: memoryview) -> int:
    """Read all files below ``folder`` one behind another into ``buffer``; return the bytes."""
    end = 0
    for path in files_below(folder):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer[end : end + PIECE]):
                end += count
    return end


def files_below(folder: Path) -> list[Path]:
    """Return all files below ``folder``, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def touched_buffer(size: int) -> memoryview:
    """Return ``size`` bytes of memory whose pages are there."""
    return np.ones(size, np.uint8).data.cast("B")


def make_durable(folder: Path) -> None:
    """Sync all files below ``folder``, and the folders."""
    for path in [*files_below(folder), *(path for path in folder.rglob("*") if path.is_dir()), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def drop_from_memory(folder: Path) -> bool:
    """Have the system forget what it holds of the durable files below ``folder``; return whether it did."""
    dropped = True
    for path in files_below(folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            dropped &= not _is_held(descriptor)
        finally:
            os.close(descriptor)
    return dropped


def _is_held(descriptor: int) -> bool:
    try:
        return os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) > 0
    except OSError as error:
        return error.errno != errno.EAGAIN  # where nobody can tell, they count as held


@final
class SlowFiles(FileOperations):
    """A disk that takes so many ``seconds`` longer for each operation."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    @override
    def make_folder(self, path: Path) -> None:
        time.sleep(self._seconds)
        super().make_folder(path)

    @override
    def write_file(self, path: Path, data: bytes) -> None:
        time.sleep(self._seconds)
        super().write_file(path, data)

    @override
    def write_chunks(self, path: Path, chunks: Iterable[Buffer]) -> None:
        super().write_chunks(path, self._slowly(chunks))

    @override
    def overwrite_file(self, path: Path) -> None:
        time.sleep(self._seconds)
        super().overwrite_file(path)

    @override
    def sync_file(self, path: Path) -> None:
        time.sleep(self._seconds)
        super().sync_file(path)

    @override
    def sync_folder(self, path: Path) -> None:
        time.sleep(self._seconds)
        super().sync_folder(path)

    @override
    def rename(self, source: Path, target: Path) -> None:
        time.sleep(self._seconds)
        super().rename(source, target)

    @override
    def remove_file(self, path: Path) -> None:
        time.sleep(self._seconds)
        super().remove_file(path)

    @override
    def remove_folder(self, path: Path) -> None:
        time.sleep(self._seconds)
        super().remove_folder(path)

    @override
    def open_file(self, path: Path) -> FileIO:
        time.sleep(self._seconds)
        return super().open_file(path)

    def _slowly(self, chunks: Iterable[Buffer]) -> Iterator[Buffer]:
        time.sleep(self._seconds)
        yield from chunks
