"""Reads the copy of a checkpoint in an archive and downloads it to the disk."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from holdfast.adapters.state_store.corruption import CorruptCheckpoint, CorruptionKind
from holdfast.adapters.state_store.hashing import HashingStream
from holdfast.adapters.state_store.manifest import (
    COMMIT,
    LARGEST_MANIFEST,
    MANIFEST,
    SCHEMA,
    Manifest,
    OtherSchemaError,
    check_names,
    commit_of,
)
from holdfast.adapters.state_store.store_folder import folder_name
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.adapters.state_store.archive.object_store import ObjectInfo, ObjectStore
    from holdfast.adapters.state_store.manifest import CheckpointFile

COMMIT_SIZE = len(commit_of(b""))


def read_copy(objects: ObjectStore, step: int, found: Mapping[str, ObjectInfo]) -> tuple[Manifest, bytes]:
    """Return the manifest of the copy of ``step`` among the objects ``found``, and its bytes.

    Raises ``CorruptCheckpoint`` for an incomplete or damaged copy, ``StateError`` for one of another version.
    """
    try:
        return _read_copy(objects, step, found)
    except CorruptCheckpoint as corruption:
        if corruption.kind is not CorruptionKind.BAD_COMMIT:
            raise
    return _read_copy(objects, step, found)  # the first reading may have been wrong


def _read_copy(objects: ObjectStore, step: int, found: Mapping[str, ObjectInfo]) -> tuple[Manifest, bytes]:
    name = folder_name(step)
    data = _read(objects, f"{name}/{MANIFEST}", found, LARGEST_MANIFEST)
    if _read(objects, f"{name}/{COMMIT}", found, COMMIT_SIZE) != commit_of(data):
        raise CorruptCheckpoint(
            CorruptionKind.BAD_COMMIT, f"{objects.name(f'{name}/{COMMIT}')} is not the hash of {MANIFEST}"
        )
    try:
        manifest = Manifest.from_bytes(data)
    except OtherSchemaError as error:
        msg = (
            f"{objects.name(name)} was written by another version, with schema {error} where this one has {SCHEMA}: "
            "use that version, or archive elsewhere"
        )
        raise StateError(msg) from error
    except CorruptCheckpoint as corruption:
        raise CorruptCheckpoint(
            corruption.kind, f"{objects.name(f'{name}/{MANIFEST}')} is not a manifest, {corruption}"
        ) from corruption
    if manifest.progress.step != step:
        raise CorruptCheckpoint(
            CorruptionKind.WRONG_NAME, f"{objects.name(f'{name}/{MANIFEST}')} is that of step {manifest.progress.step}"
        )
    return manifest, data


def check_sizes(objects: ObjectStore, manifest: Manifest, found: Mapping[str, ObjectInfo]) -> None:
    """Raise ``CorruptCheckpoint`` unless ``found`` has all files of the manifest, with the right sizes."""
    check_names(file.path for file in manifest.files)
    for file in manifest.files:
        key = f"{folder_name(manifest.progress.step)}/{file.path}"
        if key not in found:
            raise CorruptCheckpoint(CorruptionKind.MISSING_FILE, f"{objects.name(key)} is missing")
        if found[key].size != file.size:
            raise CorruptCheckpoint(
                CorruptionKind.WRONG_SIZE, f"{objects.name(key)} has {found[key].size} bytes instead of {file.size}"
            )


def download(objects: ObjectStore, files: FileOperations, manifest: Manifest, data: bytes, into: Path) -> None:
    """Download the files of the manifest, whose bytes are ``data``, into the empty folder ``into``, durably.

    A file with a wrong hash is read once more; raises ``CorruptCheckpoint`` if it is wrong again.
    """
    inner = {into / parent for file in manifest.files for parent in PurePosixPath(file.path).parents} - {into}
    for folder in sorted(inner):
        files.make_folder(folder)
    for file in manifest.files:
        key, path = f"{folder_name(manifest.progress.step)}/{file.path}", into / file.path
        if not (_bring(objects, files, key, file, path) or _bring(objects, files, key, file, path)):
            raise CorruptCheckpoint(
                CorruptionKind.WRONG_HASH, f"{objects.name(key)} does not have the bytes that were saved"
            )
    for path, content in ((into / MANIFEST, data), (into / COMMIT, commit_of(data))):
        files.write_file(path, content)
        files.sync_file(path)
    for folder in [*sorted(inner, reverse=True), into]:
        files.sync_folder(folder)


def _bring(objects: ObjectStore, files: FileOperations, key: str, file: CheckpointFile, path: Path) -> bool:
    """Write the object ``key`` to ``path``, durably; return whether its hash is right, and delete it if not."""
    hashed = HashingStream(objects.chunks(key, file.size))
    files.write_chunks(path, hashed)
    if hashed.hash != file.hash:
        files.remove_file(path)
        return False
    files.sync_file(path)
    return True


def _read(objects: ObjectStore, key: str, found: Mapping[str, ObjectInfo], largest: int) -> bytes:
    if key not in found:
        raise CorruptCheckpoint(CorruptionKind.INCOMPLETE, f"{objects.name(key)} is missing")
    if found[key].size > largest:
        raise CorruptCheckpoint(CorruptionKind.BAD_MANIFEST, f"{objects.name(key)} has more than {largest} bytes")
    content = objects.read(key)
    if content is None:
        raise CorruptCheckpoint(CorruptionKind.INCOMPLETE, f"{objects.name(key)} is missing")
    return content
