"""The only writer of an audit file."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, final

from blake3 import blake3

from holdfast.adapters.shared.files.file_lock import lock
from holdfast.adapters.shared.files.file_operations import explain, move_into_place
from holdfast.adapters.shared.files.regular_file import end_of_lines, open_regular, read_at_alike
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import UnionType
    from typing import BinaryIO

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


LONGEST_LINE = 1 << 20
_MARK = b',"hash":"'
_END = b'"}\n'
_MEMBERS: Mapping[str, type | UnionType] = {
    "details": dict,
    "event": str,
    "previous": str | None,
    "sequence": int,
    "time": str,
}


class MalformedEntryError(Exception):
    """A line differs from the one that was written; the message completes "line N ..."."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """The content of a line; ``previous`` is the hash of the line before, None in the first, whose sequence is 1."""

    sequence: int
    time: str
    event: str
    details: Mapping[str, Any]
    previous: str | None
    hash: str


def new_line(
    event: str, details: Mapping[str, Any], *, after: AuditEntry | None, key: bytes | None
) -> tuple[bytes, AuditEntry]:
    """Return the line of ``event``, at the present time, that continues ``after``, and its content.

    ``details`` must be JSON values without NaN and infinities.
    """
    record: dict[str, Any] = {
        "sequence": after.sequence + 1 if after else 1,
        "time": datetime.now(UTC).isoformat(timespec="microseconds"),
        "event": event,
        "details": dict(details),
        "previous": after.hash if after else None,
    }
    body = json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
    digest = _hash(body, key)
    return body[:-1] + _MARK + digest.encode("ascii") + _END, AuditEntry(**record, hash=digest)


def read_line(line: bytes, key: bytes | None) -> AuditEntry:
    """Return the content of ``line``; raise ``MalformedEntryError`` if its hash does not match its bytes."""
    start, mark, stated = line.rpartition(_MARK)
    body = start + b"}"
    digest = _hash(body, key)
    if not mark or stated != digest.encode("ascii") + _END:
        raise MalformedEntryError(_why_not(stated, key))
    try:
        record = json.loads(body)
        is_one = record.keys() == _MEMBERS.keys()
        if is_one and all(isinstance(record[name], kind) for name, kind in _MEMBERS.items()):
            return AuditEntry(**record, hash=digest)
    except (ValueError, RecursionError):
        pass  # without a key anybody can compute the hash of a forged line
    msg = "is not a valid entry, although its hash is right: it was forged"
    raise MalformedEntryError(msg)


def _hash(body: bytes, key: bytes | None) -> str:
    if key is None:
        return f"blake3:{blake3(body).hexdigest()}"
    return f"blake3-keyed:{blake3(body, key=key).hexdigest()}"


def _why_not(stated: bytes, key: bytes | None) -> str:
    if key is None and stated.startswith(b"blake3-keyed:"):
        return "was written with a key: give that key"
    if key is not None and stated.startswith(b"blake3:"):
        return "was written without a key, so anybody may have written it"
    secret = "" if key is None else ", or the key is wrong"
    return f"is not what was written: it was changed, cut or added{secret}"


class ChainFlaw(StrEnum):
    """The kinds of defects of a line."""

    CHANGED = "changed"
    TORN = "torn"
    REMOVED = "removed"
    REORDERED = "reordered"
    ADDED = "added"


@dataclass(frozen=True, slots=True)
class BrokenLine:
    """The first line, counted from 1, that differs from the written one; ``reason`` completes "line N ..."."""

    line: int
    flaw: ChainFlaw
    reason: str


@dataclass(frozen=True, slots=True)
class ChainReport:
    """The entries before the first broken line: their number, the times of the first and last, the hash of the last."""

    num_entries: int = 0
    first_time: str | None = None
    last_time: str | None = None
    last_hash: str | None = None
    broken: BrokenLine | None = None


def verify_chain(path: Path, *, key: bytes | None = None, holding: str | None = None) -> ChainReport:
    """Read the audit file ``path``, again if it seems broken, and return how far it is valid; memory holds one line.

    Without ``key`` the whole file may have been forged, and in any case whole lines may have been removed at the end.
    Only ``holding``, the hash of an entry that must exist, shows that. Raises ``OSError`` if the file cannot be read.
    """
    report = _read_chain(path, key, holding)
    if report.broken is None:
        return report
    again = _read_chain(path, key, holding)  # only the reading may have been wrong
    return again if again.broken is None or again.num_entries >= report.num_entries else report


def _read_chain(path: Path, key: bytes | None, holding: str | None) -> ChainReport:
    first: AuditEntry | None = None
    last: AuditEntry | None = None
    is_held = holding is None
    broken = None
    with open_regular(path) as file:
        for number, line in enumerate(_lines(file), 1):
            try:
                entry = read_line(line, key)
            except MalformedEntryError as error:
                broken = BrokenLine(number, *_unreadable(line, str(error)))
                break
            if _follows(entry, last):
                first, last = first or entry, entry
                is_held = is_held or entry.hash == holding
            else:
                broken = BrokenLine(number, *_misplaced(entry, last, file, key))
                break
    num_entries = last.sequence if last else 0
    if broken is None and not is_held:
        reason = f"or later was cut off, or the whole file was replaced: there is no entry with the hash {holding}"
        broken = BrokenLine(num_entries + 1, ChainFlaw.REMOVED, reason)
    if first is None or last is None:
        return ChainReport(broken=broken)
    return ChainReport(num_entries, first.time, last.time, last.hash, broken)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield lines with their ends; a line that is too long comes in parts."""
    while line := file.readline(LONGEST_LINE):
        yield line


def _follows(entry: AuditEntry, last: AuditEntry | None) -> bool:
    if last is None:
        return entry.sequence == 1 and entry.previous is None
    return entry.sequence == last.sequence + 1 and entry.previous == last.hash


def _unreadable(line: bytes, reason: str) -> tuple[ChainFlaw, str]:
    if line.endswith(b"\n") or len(line) == LONGEST_LINE:
        return ChainFlaw.CHANGED, reason
    return ChainFlaw.TORN, "is incomplete: a crash interrupted it, and the next writer will record that, or it was cut"


def _misplaced(entry: AuditEntry, last: AuditEntry | None, rest: BinaryIO, key: bytes | None) -> tuple[ChainFlaw, str]:
    expected = last.sequence + 1 if last else 1
    if entry.sequence == expected:
        return ChainFlaw.CHANGED, "does not continue the line before: one of the two was replaced"
    if entry.sequence < expected:
        return ChainFlaw.ADDED, f"holds entry {entry.sequence}, which came before: it was added"
    if any(_number_of(line, key) == expected for line in _lines(rest)):
        return ChainFlaw.REORDERED, f"holds entry {entry.sequence}, and entry {expected} comes later: lines were moved"
    return (
        ChainFlaw.REMOVED,
        f"holds entry {entry.sequence}: the entries before it, from {expected} on, were removed",
    )


def _number_of(line: bytes, key: bytes | None) -> int | None:
    try:
        return read_line(line, key).sequence
    except MalformedEntryError:
        return None
