"""Folders that appear under their names only when they are complete, are moved durably, and are erased for good."""

from __future__ import annotations

import glob
import json
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from holdfast.adapters.shared.files.file_lock import lock, locked, open_folder
from holdfast.adapters.shared.files.file_operations import FileOperations, destroy_file, write_whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

ERASED = "ERASED.json"
"""The file that remains of an erased folder."""

_SUFFIX = ".draft"


def make_folders(files: FileOperations, folder: Path) -> None:
    """Create ``folder`` and those above it that are missing, durably; another process may be first.

    Raises ``OSError``.
    """
    if folder.is_dir():
        return
    make_folders(files, folder.parent)
    try:
        files.make_folder(folder)
    except FileExistsError:
        if not folder.is_dir():
            raise
    try:
        files.sync_folder(folder.parent)
    except BaseException:
        with suppress(OSError):
            files.remove_folder(folder)  # else the next call would take its name to be durable
        raise


def move(files: FileOperations, source: Path, target: Path) -> None:
    """Give the folder ``source`` the name ``target``, free or that of an empty folder, durably.

    After an error, which is ``OSError``, it is moved back. Both parents are synced: otherwise, on some file systems, a
    power loss could restore the old name beside the new one, and deleting the old one would empty both.
    """
    files.rename(source, target)
    try:
        for parent in dict.fromkeys([target.parent, source.parent]):
            files.sync_folder(parent)
    except BaseException:
        with suppress(OSError):
            files.rename(target, source)
        raise


@contextmanager
def locked_draft(files: FileOperations, draft: Path, place: Path) -> Iterator[Path]:
    """Yield the new folder ``draft``, which is locked, and is deleted after the block unless it was moved.

    It is created while ``place`` is locked, so that ``delete_abandoned`` there does not find it unlocked. Raises
    ``OSError``.
    """
    held: int | None = None
    try:
        with locked(open_folder(place)):
            files.make_folder(draft)
            held = lock_of_folder(draft)
        yield draft
    finally:
        with suppress(OSError):  # the next process deletes it
            if draft.exists():
                files.remove_tree(draft)
        if held is not None:
            os.close(held)


def delete_abandoned(files: FileOperations, drafts: Iterable[Path]) -> None:
    """Delete those ``drafts`` whose processes have ended; raises ``OSError``. The caller has locked their place."""
    for draft in sorted(drafts):
        held = lock_of_folder(draft)
        if held is not None:
            try:
                files.remove_tree(draft)
            finally:
                os.close(held)


def lock_of_folder(path: Path) -> int | None:
    """Return a descriptor that locks the folder until it is closed; None if it is gone or already locked."""
    try:
        descriptor = lock(open_folder(path))
    except (FileNotFoundError, BlockingIOError):
        return None
    if not path.exists():  # its owner has published or deleted it since
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def draft_beside(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside ``folder`` for its files, which is deleted after the block unless it was moved.

    Nothing is left behind by a block that raises, not even folders above ``folder`` that were made for it. A draft of a
    process that was killed is deleted by the next call for the same ``folder``. Raises ``OSError``.
    """
    files, place = FileOperations(), folder.parent
    missing = [each for each in folder.parents if not each.exists()]
    place.mkdir(parents=True, exist_ok=True)
    try:
        with locked(open_folder(place)):
            for draft in place.glob(f".{glob.escape(folder.name)}.*{_SUFFIX}"):
                with suppress(OSError):  # of another user
                    delete_abandoned(files, [draft])
        with locked_draft(files, folder.with_name(f".{folder.name}.{uuid4().hex}{_SUFFIX}"), place) as draft:
            yield draft
    finally:
        with suppress(OSError):  # the first that is not empty ends it
            for each in missing:
                each.rmdir()


def move_draft(draft: Path, folder: Path) -> None:
    """Make the files of the complete ``draft`` durable, and move it to ``folder``; raises ``OSError``."""
    files = FileOperations()
    for path in sorted(draft.rglob("*")):
        if path.is_dir():
            files.sync_folder(path)
        else:
            files.sync_file(path)
    files.sync_folder(draft)
    move(files, draft, folder)


def erase(files: FileOperations, folder: Path, keys: Iterable[Path], record: Mapping[str, Any]) -> None:
    """Overwrite and delete the files ``keys``, then delete the rest of ``folder``; ``ERASED`` remains, with ``record``.

    May be repeated after a crash: the first record stays. Raises ``OSError``.
    """
    for key in keys:
        destroy_file(files, key)
    if not os.path.lexists(folder / ERASED):
        write_whole(files, folder / ERASED, json.dumps(record).encode())
        files.sync_folder(folder)
    for path in sorted(folder.iterdir()):
        if path.name != ERASED:
            files.remove_tree(path)
    files.sync_folder(folder)


def is_erased(folder: Path) -> bool:
    """Return whether nothing but the record of its erasure remains of ``folder``; raises ``OSError``."""
    return [path.name for path in folder.iterdir()] == [ERASED]
