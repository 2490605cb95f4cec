"""What lies in a folder, and its hash, without following a link."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from adapters.state_store.defect import Defect, Flaw

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from adapters.shared.file_operations import FileOperations

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Tree:
    """The regular files of a folder, relative POSIX path to size in bytes, and its folders, itself last."""

    files: Mapping[str, int]
    folders: Sequence[Path]


def read_tree(folder: Path) -> Tree:
    """Return what lies in ``folder``; a link, pipe, socket or device raises ``Defect``. Opens no file."""
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
                    raise Defect(Flaw.IRREGULAR_FILE, f"{name!r} is neither a file nor a folder")
    return Tree(files, folders[::-1])


def hash_bytes(data: bytes) -> str:
    """Return the BLAKE3 hash of ``data``, named after its algorithm."""
    return f"blake3:{blake3(data).hexdigest()}"


def hash_file(files: FileOperations, path: Path) -> str:
    """Return what ``hash_bytes`` would of the file's bytes.

    It reads instead of mapping the file: a sector that cannot be read is then an ``OSError``, not the end of the
    process by SIGBUS.
    """
    with files.open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        hasher = blake3(max_threads=blake3.AUTO if size > _CHUNK else 1)
        buffer = memoryview(bytearray(min(size, _CHUNK) or 1))
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return f"blake3:{hasher.hexdigest()}"
