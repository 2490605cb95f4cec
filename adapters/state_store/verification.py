"""Whether a stored checkpoint is what was saved."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from adapters.state_store.defect import Defect, Flaw
from adapters.state_store.manifest import (
    COMMIT,
    LARGEST_MANIFEST,
    MANIFEST,
    SCHEMA,
    Manifest,
    OtherSchemaError,
    commit_of,
)
from adapters.state_store.store_folder import folder_name
from adapters.state_store.tree import hash_file, read_tree
from domain.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

    from adapters.shared.file_operations import FileOperations


def read_manifest(files: FileOperations, folder: Path) -> Manifest:
    """Return the manifest of a committed folder, the other files unread.

    Raises ``Defect`` for a folder that is not committed, ``StateError`` for one of another version, ``OSError`` for a
    disk that cannot be read.
    """
    if not stat.S_ISDIR(folder.lstat().st_mode):
        raise Defect(Flaw.NOT_A_FOLDER, f"{folder.name} is not a folder")
    data = _read(files, folder / MANIFEST, LARGEST_MANIFEST)
    if _read(files, folder / COMMIT, len(commit_of(b""))) != commit_of(data):
        raise Defect(Flaw.BAD_COMMIT, f"{COMMIT} is not the hash of {MANIFEST}")
    try:
        manifest = Manifest.from_bytes(data)
    except OtherSchemaError as error:
        msg = (
            f"{folder} was written by another version, with schema {error} where this one has {SCHEMA}: "
            "use that version, or start anew with --fresh"
        )
        raise StateError(msg) from error
    if folder.name != folder_name(manifest.progress.step):
        raise Defect(Flaw.WRONG_NAME, f"{MANIFEST} is that of step {manifest.progress.step}")
    return manifest


def verify(files: FileOperations, folder: Path) -> Manifest:
    """Return the manifest of ``folder`` once every byte in it is known to be as saved; raises as ``read_manifest``.

    Only files that a walk through the folder found are opened, so no listed path leads out of it.
    """
    manifest = read_manifest(files, folder)
    found = dict(read_tree(folder).files)
    _compare_names({file.path for file in manifest.files}, found.keys() - {MANIFEST, COMMIT})
    for file in manifest.files:
        if found[file.path] != file.size:
            raise Defect(Flaw.WRONG_SIZE, f"{file.path!r} has {found[file.path]} bytes instead of {file.size}")
    for file in manifest.files:
        if hash_file(files, folder / file.path) != file.hash:
            raise Defect(Flaw.WRONG_HASH, f"{file.path!r} does not have the bytes that were saved")
    return manifest


def _compare_names(listed: set[str], found: set[str]) -> None:
    if missing := sorted(listed - found):
        raise Defect(Flaw.MISSING_FILE, f"{missing[0]!r} is missing")
    if extra := sorted(found - listed):
        raise Defect(Flaw.EXTRA_FILE, f"{extra[0]!r} does not belong to it")


def _read(files: FileOperations, path: Path, largest: int) -> bytes:
    try:
        is_regular = stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError as error:
        raise Defect(Flaw.INCOMPLETE, f"{path.name} is missing") from error
    if not is_regular:
        raise Defect(Flaw.IRREGULAR_FILE, f"{path.name} is not a file")
    with files.open_file(path) as file:
        if os.fstat(file.fileno()).st_size > largest:
            raise Defect(Flaw.BAD_MANIFEST, f"{path.name} has more than {largest} bytes")
        return file.read()
