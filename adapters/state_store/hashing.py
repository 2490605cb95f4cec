"""Lists and hashes the files of a folder without following links."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, final

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from typing_extensions import Buffer

    from holdfast.adapters.shared.files.file_operations import FileOperations

_PIECE = 4 << 20
_SMALL = 1 << 16  # bytes that are hashed without a thread


@dataclass(frozen=True, slots=True)
class Tree:
    """The regular files of a folder, by relative POSIX path, with sizes in bytes, and its subfolders, itself last."""

    files: Mapping[str, int]
    folders: Sequence[Path]


def read_tree(folder: Path) -> Tree:
    """List ``folder`` without opening files; a link, pipe, socket or device raises ``CorruptCheckpoint``."""
    files: dict[str, int] = {}
    folders = [folder]
    for current in folders:
        with os.scandir(current) as entries:
            for entry in entries:
                path = Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                elif entry.is_file(follow_symlinks=False):
                    files[path.relative_to(folder).as_posix()] = entry.stat(follow_symlinks=False).st_size
                else:
                    name = path.relative_to(folder).as_posix()
                    raise CorruptCheckpoint(CorruptionKind.IRREGULAR_FILE, f"{name!r} is neither a file nor a folder")
    return Tree(files, folders[::-1])


def hash_bytes(data: bytes) -> str:
    """Return the BLAKE3 hash of ``data``, named after its algorithm."""
    return f"blake3:{blake3(data).hexdigest()}"


def hash_file(files: FileOperations, path: Path) -> str:
    """Return the hash of the file's bytes, in the form of ``hash_bytes``.

    It reads one piece ahead and does not map the file, so a bad sector raises ``OSError`` and does not end the process
    by SIGBUS.
    """
    with files.open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= _PIECE:
            return hash_bytes(file.readall())
        hasher = blake3(max_threads=blake3.AUTO)
        with ThreadPoolExecutor(1, "read") as thread:
            buffer, ahead = (memoryview(bytearray(_PIECE)) for _ in range(2))
            reading = thread.submit(file.readinto, buffer)
            while count := reading.result():
                reading = thread.submit(file.readinto, ahead)
                hasher.update(buffer[:count])
                buffer, ahead = ahead, buffer
    return f"blake3:{hasher.hexdigest()}"


@final
class HashingStream:
    """Counts and hashes the bytes that are iterated, in pieces that fit into the processor's cache."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self.size = 0
        self._chunks = chunks
        self._hasher = blake3(max_threads=blake3.AUTO)

    @property
    def hash(self) -> str:
        """Return the hash of the bytes yielded so far, in the form of ``hash_bytes``."""
        return f"blake3:{self._hasher.hexdigest()}"

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the pieces; a large one is hashed in a thread while the caller uses it."""
        with ThreadPoolExecutor(1, "hash") as thread:
            for chunk in self._chunks:
                view = memoryview(chunk).cast("B")
                self.size += len(view)
                if len(view) <= _SMALL:
                    self._hasher.update(view)
                    yield view
                    continue
                for start in range(0, len(view), _PIECE):
                    piece = view[start : start + _PIECE]
                    hashed = thread.submit(self._hasher.update, piece)
                    yield piece
                    hashed.result()


class CorruptionKind(StrEnum):
    """The kinds of defects, as they appear in the names of quarantined folders."""

    BAD_COMMIT = "bad-commit"
    BAD_MANIFEST = "bad-manifest"
    EXTRA_FILE = "extra-file"
    INCOMPLETE = "incomplete"
    IRREGULAR_FILE = "irregular-file"
    MISSING_FILE = "missing-file"
    NOT_A_FOLDER = "not-a-folder"
    NOT_FINITE = "not-finite"
    WRONG_HASH = "wrong-hash"
    WRONG_NAME = "wrong-name"
    WRONG_SIZE = "wrong-size"


class CorruptCheckpoint(Exception):
    """A checkpoint differs from what was saved; the message has the kind of flaw and a clause with its place."""

    def __init__(self, kind: CorruptionKind, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
