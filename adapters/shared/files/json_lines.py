"""Records in a file, one JSON object per line."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
from collections import deque
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.file_operations import explain, move_into_place
from holdfast.adapters.shared.files.regular_file import end_of_lines, open_regular, read_at, read_at_alike, regular
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from io import FileIO
    from pathlib import Path
    from typing import BinaryIO

LONGEST_LINE = 16 << 20
"""The most bytes of a line that is taken for a record: no run writes longer ones, and memory holds a line."""
_log = logging.getLogger(__name__)


@final
class JsonLines:
    """Stores records in a file, one JSON object per line, in ASCII.

    When ``append`` returns, the operating system has the record: it survives ``kill -9``, not a power cut. An
    incomplete last line, left by a crash, is not a record, and the next ``append`` or ``cut`` removes it. NaN and the
    infinities are the strings "NaN", "Infinity" and "-Infinity", as in the JSON of protocol buffers; ``float`` reads
    them back. One writer at a time.

    A record that the disk refuses raises ``StateError`` and waits in memory: it and later ones, up to ``most_waiting``
    bytes, are written in order, each once, as soon as the disk accepts them. Until then, of later records, only the
    first that is dropped raises ``StateError`` again. Records that cannot be written at ``close`` are logged.
    """

    def __init__(self, path: Path, *, most_waiting: int = 16 << 20) -> None:
        self._path = path
        self._most_waiting = most_waiting
        self._file: FileIO | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._whole: int | None = None  # the start of a line that may be incomplete
        self._refused = False
        self._dropped = 0

    def append(self, record: Mapping[str, object]) -> None:
        """Add ``record`` as the last line; missing folders are created."""
        line = encode_record(record)
        if self._waiting and self._waiting_bytes + len(line) > self._most_waiting:
            self._write_waiting()
            if self._waiting:
                self._drop()
                return
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        self._write_waiting()

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the stored records; other lines are skipped. Raises ``StateError`` if the file cannot be opened."""
        if self._path.exists():
            try:
                lines = open_regular(self._path)
            except OSError as error:
                msg = f"{self._path} cannot be read: {error.strerror}"
                raise StateError(msg) from error
            with lines:
                yield from filter(None, map(_decode, bounded_lines(lines)))

    def cut(self, keep: Callable[[Mapping[str, Any]], bool]) -> None:
        """Remove the records for which ``keep`` is false; all other complete lines stay, byte for byte.

        The change is atomic and durable; memory holds one line at a time. Lines of more than ``LONGEST_LINE`` bytes are
        no records and are removed. Raises ``StateError`` if the disk reports an error.
        """
        self._let_go()
        self._waiting = deque(line for line in self._waiting if keep(_decode(line) or {}))
        self._waiting_bytes = sum(map(len, self._waiting))
        if not self._path.exists():
            return
        shortened = self._path.with_name(f"{self._path.name}.tmp")
        try:
            self._remove_torn()
            if _copy_kept(self._path, shortened, keep):
                shutil.copymode(self._path, shortened)
                move_into_place(shortened, self._path)
        except OSError as error:
            msg = f"{self._path} cannot be shortened, {explain(error)}"
            raise StateError(msg) from error
        finally:
            shortened.unlink(missing_ok=True)

    def close(self) -> None:
        """Write waiting records, if possible, and close the file; a later ``append`` opens it again."""
        if self._waiting:
            with contextlib.suppress(StateError):  # it was raised when the first of them was refused
                self._write_waiting()
        if lost := len(self._waiting) + self._dropped:
            told = "1 record" if lost == 1 else f"{lost} records"
            _log.warning("lost, because the disk did not accept them: %s of %s", told, self._path)
        self._waiting.clear()
        self._waiting_bytes, self._dropped, self._refused = 0, 0, False
        self._let_go()

    def _write_waiting(self) -> None:
        try:
            if self._file is None:
                self._remove_torn()
                self._file = _open_after_last_record(self._path)
            while self._waiting:
                self._whole = self._file.seek(0, os.SEEK_END)
                rest = memoryview(self._waiting[0])
                while rest:
                    rest = rest[self._file.write(rest) :]
                self._whole = None
                self._waiting_bytes -= len(self._waiting.popleft())
        except OSError as error:
            self._let_go()
            if not self._refused:
                self._refused = True
                msg = (
                    f"a record cannot be added to {self._path}, {explain(error)}; this record and later ones are "
                    "kept in memory and written as soon as possible"
                )
                raise StateError(msg) from error
        else:
            self._refused = False

    def _remove_torn(self) -> None:
        """Remove the incomplete line of a failed write, which is written again as a whole."""
        if self._whole is not None:
            if self._path.exists() and self._path.stat().st_size > self._whole:
                os.truncate(self._path, self._whole)
            self._whole = None

    def _drop(self) -> None:
        self._dropped += 1
        if self._dropped == 1:
            msg = f"more records wait to be added to {self._path} than memory may hold: later ones are lost"
            raise StateError(msg)

    def _let_go(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None


def bounded_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of ``file``, the last one also if it is not ended, without those of ``LONGEST_LINE`` or more."""
    is_begin = True
    while piece := file.readline(LONGEST_LINE):
        is_end = piece.endswith(b"\n") or len(piece) < LONGEST_LINE
        if is_begin and is_end:
            yield piece
        is_begin = is_end


_ENCODER = json.JSONEncoder(allow_nan=False)


def encode_record(record: Mapping[str, object]) -> bytes:
    """Return ``record`` as a line of JSON, in ASCII; NaN and the infinities are strings."""
    try:
        text = _ENCODER.encode(record)
    except ValueError:
        text = _ENCODER.encode(without_non_finite(record))
    return f"{text}\n".encode("ascii")


def without_non_finite(value: Any) -> Any:
    """Return ``value`` with NaN and the infinities in it as strings, and tuples as lists."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {key: without_non_finite(item) for key, item in value.items()}
        case list() | tuple():
            return [without_non_finite(item) for item in value]
        case _:
            return value


def _decode(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _open_after_last_record(path: Path) -> FileIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "a+b", buffering=0, opener=regular)  # noqa: SIM115  a path knows no opener
    try:
        end = file.seek(0, os.SEEK_END)
        start = end_of_lines(file.fileno(), end)
        if end > start:
            if end - start > LONGEST_LINE or _decode(read_at_alike(file.fileno(), start, end - start)) is None:
                file.truncate(start)
            else:
                file.write(b"\n")
    except OSError:
        file.close()
        raise
    return file


def _copy_kept(source: Path, target: Path, keep: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Return whether the copy differs."""
    differs = False
    with open_regular(source) as lines, open(target, "wb", opener=regular) as kept:
        for line in bounded_lines(lines):
            ended = line.endswith(b"\n")
            record = _decode(line)
            wanted = ended if record is None else keep(record)
            differs |= not (wanted and ended)
            if wanted:
                kept.write(line if ended else line + b"\n")
        differs |= lines.tell() != kept.tell()
    return differs


MOST_BYTES = 4 << 20
_KEPT_BYTES = 1 << 20
_CUT = b"[earlier lines were removed]\n"


def limit_log(descriptor: int, most: int | None = None) -> None:
    """Remove the earlier lines of a log of more than ``most`` bytes, by default 4 MiB, so that it cannot fill the disk.

    ``descriptor`` is open for reading, and like that of the child for appending (``O_APPEND``): the child then goes on
    behind the lines that are left. Lines that it writes at this very moment may be lost. Raises ``OSError``.
    """
    most = MOST_BYTES if most is None else most
    size = os.fstat(descriptor).st_size
    if size <= most:
        return
    kept = read_at(descriptor, size - min(most, _KEPT_BYTES), min(most, _KEPT_BYTES))
    os.ftruncate(descriptor, 0)
    os.write(descriptor, _CUT + kept[kept.find(b"\n") + 1 :])
