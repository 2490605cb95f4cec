"""Verifies that an audit file is unchanged since it was written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast.adapters.shared.audit.audit_entry import LONGEST_LINE, AuditEntry, MalformedEntryError, read_line
from holdfast.adapters.shared.files.regular_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import BinaryIO


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
