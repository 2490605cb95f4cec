"""Verifies checkpoints while they are read, so that a large state is read only once."""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from holdfast.adapters.state_store.checkpoint_verification import check_hash
from holdfast.adapters.state_store.corruption import CorruptCheckpoint, CorruptionKind
from holdfast.adapters.state_store.hashed_file import HashedFile
from holdfast.adapters.state_store.hashing import hash_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
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
