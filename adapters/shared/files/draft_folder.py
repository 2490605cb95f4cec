"""A folder that appears under its name only when it is complete."""

from __future__ import annotations

import glob
import os
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from holdfast.adapters.shared.files.file_lock import lock, locked, open_folder
from holdfast.adapters.shared.files.file_operations import FileOperations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_SUFFIX = ".draft"


@contextmanager
def draft_beside(folder: Path) -> Iterator[Path]:
    """Yield a new folder beside ``folder`` for its files, which is deleted after the block unless it was moved.

    Nothing is left behind by a block that raises, not even folders above ``folder`` that were made for it. A draft of a
    process that was killed is deleted by the next call for the same ``folder``. Raises ``OSError``.
    """
    missing = [each for each in folder.parents if not each.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.{uuid4().hex}{_SUFFIX}")
    held: int | None = None
    try:
        with locked(open_folder(folder.parent)):  # so that no draft is deleted before it is locked
            _delete_abandoned(folder)
            draft.mkdir()
            held = _locked(draft)
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        if held is not None:
            os.close(held)
        with suppress(OSError):  # the first that is not empty ends it
            for each in missing:
                each.rmdir()


def move_draft(draft: Path, folder: Path) -> None:
    """Give the complete ``draft`` the name ``folder``, free or that of an empty folder, durably; raises ``OSError``."""
    files = FileOperations()
    for path in sorted(draft.rglob("*")):
        if path.is_dir():
            files.sync_folder(path)
        else:
            files.sync_file(path)
    files.sync_folder(draft)
    files.rename(draft, folder)
    try:
        files.sync_folder(folder.parent)
    except OSError:
        files.rename(folder, draft)  # a name that may not last is none
        raise


def _delete_abandoned(folder: Path) -> None:
    for draft in folder.parent.glob(f".{glob.escape(folder.name)}.*{_SUFFIX}"):
        with suppress(OSError):  # of a process that is still at work, or of another user
            held = _locked(draft)
            try:
                shutil.rmtree(draft, ignore_errors=True)
            finally:
                os.close(held)


def _locked(folder: Path) -> int:
    """Return a descriptor that keeps ``folder`` locked until it is closed; raises ``OSError`` if another one does."""
    return lock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
