"""Atomic replacement of a file: a reader finds the old contents or the new ones, never a part of either."""

from __future__ import annotations

import glob
import time
from contextlib import suppress
from typing import TYPE_CHECKING
from uuid import uuid4

from holdfast.adapters.shared.files.file_operations import FileOperations
from holdfast.adapters.shared.files.regular_file import regular

if TYPE_CHECKING:
    from pathlib import Path

_ABANDONED_SECONDS = 3600.0
"""Age from which a draft is of a process that was killed: no write of one file takes that long."""


def replace_file(path: Path, content: bytes, *, is_shared: bool = False, is_durable: bool = True) -> None:
    """Write ``content`` to the file ``path``, which may exist; if it raises ``OSError``, ``path`` is unchanged.

    The new contents are durable at return, after a power cut too. Without ``is_durable`` they survive the end of this
    process, but no power cut: for heartbeats, which must not wait for the disk. The draft is ``.NAME.new`` in the same
    folder; with ``is_shared``, for files that several processes may write at once, its name is unique, and old drafts
    of killed processes for ``path`` are deleted.
    """
    if is_shared:
        _delete_abandoned(path)
    draft = path.with_name(f".{path.name}.{uuid4().hex}.new" if is_shared else f".{path.name}.new")
    try:
        with open(draft, "wb", opener=regular) as file:
            file.write(content)
        if is_durable:
            move_into_place(draft, path)
        else:
            draft.replace(path)
    except OSError:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def move_into_place(draft: Path, path: Path) -> None:
    """Replace ``path`` by the complete file ``draft`` of the same folder, durably; raises ``OSError``."""
    files = FileOperations()
    files.sync_file(draft)
    files.rename(draft, path)
    files.sync_folder(path.parent.resolve())


def _delete_abandoned(path: Path) -> None:
    latest = time.time() - _ABANDONED_SECONDS
    for draft in path.parent.glob(f".{glob.escape(path.name)}.*.new"):
        with suppress(OSError):
            if draft.lstat().st_mtime < latest:
                draft.unlink()
