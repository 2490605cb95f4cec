"""The lock of a journal, which ends with the process that holds it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, final

from optuna.storages.journal import JournalFileOpenLock
from typing_extensions import override

from holdfast.adapters.shared.files.file_lock import lock, open_lock
from holdfast.adapters.shared.files.regular_file import end_of_lines, regular

if TYPE_CHECKING:
    from pathlib import Path


@final
class JournalLock(JournalFileOpenLock):
    """Lets one process at a time append to the file ``journal``, and removes the line that a kill left incomplete.

    This lock belongs to the operating system and ends with the process. The locks of the library are files that a
    killed process leaves behind, and a line after an incomplete one makes the whole file unreadable for it.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._descriptor = -1

    @override
    def acquire(self) -> bool:
        """Wait for the lock; raises ``OSError``."""
        self._descriptor = lock(open_lock(self._journal.with_name(f".{self._journal.name}.lock")), waits=True)
        try:
            _remove_incomplete_line(self._journal)
        except BaseException:
            self.release()
            raise
        return True

    @override
    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)
        self._descriptor = -1


def _remove_incomplete_line(path: Path) -> None:
    """Cut the file after its last line break; a file that does not exist is left alone."""
    try:
        descriptor = regular(str(path), os.O_RDWR)
    except FileNotFoundError:
        return
    try:
        size = os.fstat(descriptor).st_size
        end = end_of_lines(descriptor, size)
        if end < size:
            os.ftruncate(descriptor, end)
    finally:
        os.close(descriptor)
