"""The only writer of an audit file."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.audit.audit_entry import (
    LONGEST_LINE,
    AuditEntry,
    MalformedEntryError,
    new_line,
    read_line,
)
from holdfast.adapters.shared.files.atomic_replace import move_into_place
from holdfast.adapters.shared.files.file_lock import lock
from holdfast.adapters.shared.files.file_operations import explain
from holdfast.adapters.shared.files.regular_file import end_of_lines, read_at_alike
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TORN_END = "TornEndCut"
_BLOCK = 1 << 16  # bytes that are copied at once


@final
class AuditLog:
    """Appends to the audit file ``path``; opening it makes this object its only writer until ``close``.

    An entry is durable when ``append`` returns. If that fails, the entry is removed, and the next ``append`` tries
    again. An incomplete last line, left by a crash, is atomically replaced by an entry ``TornEndCut`` with the number
    of its bytes. With ``key``, 32 bytes, only its owners can write entries; all lines of a file have the same key or
    none. Raises ``StateError`` if another process writes the file, the disk reports an error, the last line is not
    valid, or the file or its folder belongs to another user. Other lines are not checked: ``verify_chain`` does that.
    """

    def __init__(self, path: Path, *, key: bytes | None = None) -> None:
        self._path = path.absolute()
        self._key = key
        self._file = -1
        self._state: tuple[AuditEntry | None, int] = (None, 0)  # the last entry and where it ends
        self._attempt_to_open()

    def append(self, event: str, details: Mapping[str, Any]) -> str:
        """Add an entry and return its hash; stored elsewhere, the hash shows later whether lines were removed.

        Raises ``StateError`` if the entry is too long or cannot be written.
        """
        if self._file < 0:
            self._attempt_to_open()
        last, end = self._state
        line, entry = new_line(event, details, after=last, key=self._key)
        if len(line) > LONGEST_LINE:
            msg = f"an entry of {len(line)} bytes is too long for {self._path}: the most is {LONGEST_LINE}"
            raise StateError(msg)
        try:
            _write(self._file, line)
            os.fsync(self._file)
            self._state = (entry, end + len(line))
        except BaseException as error:
            with suppress(OSError):  # what cannot be removed is an incomplete line for the next writer
                os.ftruncate(self._file, self._state[1])
            self.close()
            if isinstance(error, OSError):
                msg = f"an entry cannot be added to {self._path}, {explain(error)}"
                raise StateError(msg) from error
            raise
        return entry.hash

    def mend(self) -> None:
        """Replace an incomplete line that a failed ``append`` could not remove; raises ``StateError`` if that fails."""
        if self._file < 0:
            self._attempt_to_open()

    def close(self) -> None:
        """Release the file for another writer; may be called twice, and a later ``append`` opens it again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _attempt_to_open(self) -> None:
        try:
            self._open()
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                msg = f"the audit file {self._path} cannot be used, {explain(error)}"
                raise StateError(msg) from error
            raise

    def _open(self) -> None:
        self._file = _locked(self._path)
        _check_owner(self._path, self._file)
        size = os.fstat(self._file).st_size
        self._state = _, end = self._read_end(size)
        if end < size:
            self._replace_torn_end(size - end)
        elif not size:
            _sync_folder(self._path.parent)

    def _read_end(self, size: int) -> tuple[AuditEntry | None, int]:
        """Return the last entry of a file of ``size`` bytes and where it ends."""
        end = end_of_lines(self._file, size)
        try:
            return self._last_entry(end), end
        except MalformedEntryError as error:
            msg = f"the last line of {self._path} {error}; a new log is started if you move the file away"
            raise StateError(msg) from error

    def _last_entry(self, end: int) -> AuditEntry | None:
        if not end:
            return None
        start = end_of_lines(self._file, end - 1)
        return read_line(read_at_alike(self._file, start, min(end - start, LONGEST_LINE + 1)), self._key)

    def _replace_torn_end(self, num_bytes: int) -> None:
        last, end = self._state
        line, entry = new_line(TORN_END, {"bytes": num_bytes}, after=last, key=self._key)
        successor = self._path.with_name(f"{self._path.name}.tmp")
        successor.unlink(missing_ok=True)  # of an attempt that was killed
        # it is locked before it has the name under which others look
        file = lock(os.open(successor, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600))
        try:
            _copy(self._file, file, end)
            _write(file, line)
            move_into_place(successor, self._path)
        except BaseException:
            os.close(file)
            raise
        self.close()
        self._file, self._state = file, (entry, end + len(line))


def _locked(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        file = _lock(path, os.open(path, flags, 0o600))
        try:
            if os.path.samestat(os.fstat(file), path.lstat()):  # else it was replaced since it was opened
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _lock(path: Path, file: int) -> int:
    try:
        return lock(file)
    except BlockingIOError as error:
        msg = f"another process writes {path}: wait for it, or give this run another run.name"
        raise StateError(msg) from error


def _check_owner(path: Path, file: int) -> None:
    for place, owner in ((path, os.fstat(file).st_uid), (path.parent, path.parent.stat().st_uid)):
        if owner != os.geteuid():
            msg = f"{place} belongs to another user, who can change what is recorded: use a folder of your own"
            raise StateError(msg)


def _copy(source: int, target: int, num_bytes: int) -> None:
    for place in range(0, num_bytes, _BLOCK):
        size = min(_BLOCK, num_bytes - place)
        data = read_at_alike(source, place, size)
        if len(data) < size:
            raise OSError(errno.EIO, "it became shorter while it was read")
        _write(target, data)


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
