"""Locks that belong to the operating system (``flock``): however a process ends, its locks end with it."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.adapters.shared.files.regular_file import regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def open_lock(path: Path) -> int:
    """Return a descriptor of the file ``path``, which is created if it does not exist, for ``lock``.

    Raises ``OSError``, which is ``IrregularFileError`` for a link, a pipe or a device in its place.
    """
    return regular(str(path), os.O_RDWR | os.O_CREAT)


def open_folder(path: Path) -> int:
    """Return a descriptor of the folder ``path`` for ``lock``; raises ``OSError``."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def lock(descriptor: int, *, is_shared: bool = False, waits: bool = False) -> int:
    """Return the ``descriptor`` of a file or folder, locked until it is closed; it is closed if that fails.

    Several may hold a shared lock at once. Without ``waits`` raises ``BlockingIOError`` if another one holds it. Raises
    ``OSError`` where the file system has no locks.
    """
    kind = fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind if waits else kind | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def locked(descriptor: int) -> Iterator[None]:
    """Wait until the file or folder of ``descriptor`` is locked, and close it after the block; raises ``OSError``."""
    lock(descriptor, waits=True)
    try:
        yield
    finally:
        os.close(descriptor)
