"""A file of JSON lines that another process writes, read as it grows."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import orjson

from holdfast.adapters.shared.files.json_lines import LONGEST_LINE
from holdfast.adapters.shared.files.regular_file import open_regular, read_at, regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK = 1 << 20
_TAIL = 1 << 16


@final
@dataclass(frozen=True, slots=True)
class NewLines:
    """The complete lines ``data`` that begin at byte ``offset`` of the file.

    ``is_replaced`` says that the file is another one than before, or shorter: a roll-back has cut it. ``has_more`` says
    that more lines wait.
    """

    data: bytes
    offset: int
    is_replaced: bool
    has_more: bool


@final
class GrowingFile:
    """The lines of the file ``path``, which need not exist, from ``offset`` on.

    The file stays open between two calls, so that a later file at its place is never taken for it. A line of more than
    ``LONGEST_LINE`` bytes, which may never end, is passed over.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self.offset = 0
        self._within = -1  # where the rest of a line begins that is passed over

    @property
    def size(self) -> int:
        """Return the number of bytes of the file at its place now, 0 without one."""
        with suppress(OSError):
            return self._path.stat().st_size
        return 0

    def poll(self, most: int = _BLOCK) -> NewLines:
        """Return the next complete lines, about ``most`` bytes of them; without a file there are none."""
        is_replaced = self._open()
        if self._file < 0:
            return NewLines(b"", 0, is_replaced, False)
        start = self.offset
        data = read_at(self._file, start, most)
        is_within = start == self._within
        while (end := data.rfind(b"\n") + 1) == 0 and len(data) >= most and not is_within and most < LONGEST_LINE:
            most *= 2  # a long line
            data = read_at(self._file, start, most)
        if end == 0 and (is_within or len(data) >= LONGEST_LINE):
            self.offset = self._within = start + len(data)
            return NewLines(b"", self.offset, is_replaced, len(data) >= most)
        self.offset += end
        begin = data.index(b"\n") + 1 if is_within else 0
        return NewLines(data[begin:end], start + begin, is_replaced, len(data) >= most)

    def read_at(self, offset: int, most: int) -> bytes:
        """Return up to ``most`` bytes from ``offset``, without a change of the position."""
        return read_at(self._file, offset, most) if self._file >= 0 else b""

    def close(self) -> None:
        """Close the file; the next ``poll`` opens it again and reads it from its start."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self.offset, self._within = -1, 0, -1

    def _open(self) -> bool:
        """Open the file at its place; return whether what was read before is no longer its beginning."""
        try:
            status = self._path.stat()
        except OSError:
            was_open = self._file >= 0
            self.close()
            return was_open
        if self._file >= 0:
            with suppress(OSError):  # a file server may have forgotten the file
                known = os.fstat(self._file)
                if (known.st_dev, known.st_ino) == (status.st_dev, status.st_ino) and status.st_size >= self.offset:
                    return False
        was_open = self._file >= 0
        self.close()
        try:
            self._file = regular(str(self._path), os.O_RDONLY)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # the file is there: it would seem to be empty
                raise
        return was_open


@final
class GrowingRecords:
    """The JSON objects in a file that grows, in ``records``: the newest ``most`` at the last ``poll``; None is all."""

    def __init__(self, path: Path, most: int | None = None) -> None:
        self._file = GrowingFile(path)
        self._most = most
        self.records: list[dict[str, Any]] = []
        self.generation = 0
        """The number of times that the file was replaced."""
        self.num_read = 0
        """The number of records that were read since then, those that are no longer kept included."""

    def poll(self) -> bool:
        """Read new records; return whether there are other ones than before."""
        has_changed = False
        while True:
            growth = self._file.poll()
            if growth.is_replaced:
                self.records.clear()
                self.generation += 1
                self.num_read = 0
                has_changed = True
            records = list(records_in(growth.data))
            self.records += records
            self.num_read += len(records)
            has_changed = has_changed or bool(records)
            if self._most is not None:
                del self.records[: -self._most]
            if not growth.has_more:
                return has_changed

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def records_in(lines: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in ``lines``; lines that hold none are left out."""
    for line in lines.splitlines():
        try:
            record = orjson.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def newest_records(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects in the last 64 KiB of the file ``path``; none of a file that cannot be read."""
    try:
        with open_regular(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL - 1))
            if size > _TAIL:
                file.readline()
            return list(records_in(file.read()))
    except OSError:
        return []
