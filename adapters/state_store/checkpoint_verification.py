"""Verifies that a stored checkpoint has the bytes that were saved."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from holdfast.adapters.state_store.hashing import CorruptCheckpoint, CorruptionKind, hash_file, read_tree
from holdfast.adapters.state_store.manifest import (
    COMMIT,
    LARGEST_MANIFEST,
    MANIFEST,
    SCHEMA,
    Manifest,
    OtherSchemaError,
    commit_of,
)
from holdfast.adapters.state_store.store_folder import folder_name, is_there
from holdfast.domain.errors import StateError
from holdfast.domain.fault_tolerance.remedies import FRESH

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.adapters.state_store.manifest import CheckpointFile


def read_manifest(files: FileOperations, folder: Path) -> Manifest:
    """Return the manifest of a committed folder named after its step, without reading its other files.

    Raises ``CorruptCheckpoint`` for a folder that is not committed, ``StateError`` for a manifest of another version,
    ``OSError`` for a disk that cannot be read.
    """
    manifest = read_committed(files, folder)
    if folder.name != folder_name(manifest.progress.step):
        raise CorruptCheckpoint(CorruptionKind.WRONG_NAME, f"{MANIFEST} is that of step {manifest.progress.step}")
    return manifest


def read_committed(files: FileOperations, folder: Path) -> Manifest:
    """Return the manifest of a committed folder of any name; raises the errors of ``read_manifest``."""
    try:
        return _read_committed(files, folder)
    except CorruptCheckpoint as corruption:
        if corruption.kind is not CorruptionKind.BAD_COMMIT:
            raise
    return _read_committed(files, folder)  # the first reading may have been wrong


def _read_committed(files: FileOperations, folder: Path) -> Manifest:
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise CorruptCheckpoint(CorruptionKind.NOT_A_FOLDER, f"{folder.name} is not a folder")
    data = _read(files, folder / MANIFEST, LARGEST_MANIFEST)
    if _read(files, folder / COMMIT, len(commit_of(b""))) != commit_of(data):
        raise CorruptCheckpoint(CorruptionKind.BAD_COMMIT, f"{COMMIT} is not the hash of {MANIFEST}")
    try:
        return Manifest.from_bytes(data)
    except OtherSchemaError as error:
        msg = (
            f"{folder} was written by another version, with schema {error} where this one has {SCHEMA}: "
            f"use that version, or start a new run with {FRESH}"
        )
        raise StateError(msg) from error


def verify(files: FileOperations, folder: Path) -> Manifest:
    """Return the manifest of ``folder`` after verifying every byte; raises the errors of ``read_manifest``."""
    manifest = read_manifest(files, folder)
    require_sound(files, folder, manifest)
    return manifest


def require_sound(files: FileOperations, folder: Path, manifest: Manifest, *, hashing: bool = True) -> None:
    """Raise ``CorruptCheckpoint`` unless ``folder`` holds exactly the files that its manifest lists.

    Without ``hashing`` names and sizes are compared, and no file is opened.
    """
    for _, corruption in check_files(files, folder, manifest, hashing=hashing):
        if corruption is not None:
            raise corruption


def complete(files: FileOperations, folders: Iterable[Path]) -> Iterator[tuple[Path, Manifest]]:
    """Yield the committed folders among ``folders`` with their manifests.

    Raises ``StateError`` for a manifest of another version, ``OSError`` for a disk that cannot be read.
    """
    for folder in folders:
        try:
            yield folder, read_manifest(files, folder)
        except CorruptCheckpoint:
            continue
        except FileNotFoundError:
            if is_there(folder):
                raise


def next_generation(files: FileOperations, folders: Iterable[Path]) -> int:
    """Return the number of the next save after those in ``folders``; unreadable ones are ignored."""
    generation = 0
    for folder in folders:
        with contextlib.suppress(CorruptCheckpoint, OSError, StateError):
            generation = max(generation, read_manifest(files, folder).generation)
    return generation + 1


def check_files(
    files: FileOperations, folder: Path, manifest: Manifest, *, hashing: bool = True
) -> Iterator[tuple[str, CorruptCheckpoint | None]]:
    """Yield each listed or found file once, with its defect or None; files that need no hash come first.

    Only files found by listing the folder are opened, so no listed path leads out of it. The listing raises
    ``CorruptCheckpoint`` for a link or a device. Without ``hashing`` names and sizes are compared, and no file is
    opened.
    """
    found = read_tree(folder).files
    listed = {file.path for file in manifest.files}
    for path in sorted(listed - found.keys()):
        yield path, CorruptCheckpoint(CorruptionKind.MISSING_FILE, f"{path!r} is missing")
    for path in sorted(found.keys() - listed - {MANIFEST, COMMIT}):
        yield path, CorruptCheckpoint(CorruptionKind.EXTRA_FILE, f"{path!r} does not belong to it")
    present = [file for file in manifest.files if file.path in found]
    for file in present:
        if found[file.path] != file.size:
            reason = f"{file.path!r} has {found[file.path]} bytes instead of {file.size}"
            yield file.path, CorruptCheckpoint(CorruptionKind.WRONG_SIZE, reason)
    for file in present:
        if found[file.path] == file.size:
            try:
                if hashing:
                    check_hash(files, folder, file)
            except CorruptCheckpoint as corruption:
                yield file.path, corruption
            else:
                yield file.path, None


def check_hash(files: FileOperations, folder: Path, file: CheckpointFile, tries: int = 2) -> None:
    """Raise ``CorruptCheckpoint`` unless one of ``tries`` reads of ``file`` gives the hash that was saved."""
    if not any(hash_file(files, folder / file.path) == file.hash for _ in range(tries)):
        raise CorruptCheckpoint(CorruptionKind.WRONG_HASH, f"{file.path!r} does not have the bytes that were saved")


def _read(files: FileOperations, path: Path, largest: int) -> bytes:
    try:
        is_regular = stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError as error:
        raise CorruptCheckpoint(CorruptionKind.INCOMPLETE, f"{path.name} is missing") from error
    if not is_regular:
        raise CorruptCheckpoint(CorruptionKind.IRREGULAR_FILE, f"{path.name} is not a file")
    with files.open_file(path) as file:
        if os.fstat(file.fileno()).st_size > largest:
            raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, f"{path.name} has more than {largest} bytes")
        return file.read()
