"""Records in a file, one JSON object a line."""

from __future__ import annotations

import json
import math
import os
import shutil
from typing import TYPE_CHECKING, Any, final

from adapters.shared.file_operations import FileOperations, explain
from domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from io import FileIO
    from pathlib import Path

_BLOCK = 65536


@final
class JsonLines:
    """Keeps records in a file, one JSON object a line, in ASCII.

    A record is with the operating system when ``append`` returns: it survives ``kill -9``, not a power cut. A last line
    that a crash tore is no record, and the next ``append`` or ``cut`` removes it. JSON has no number for not-a-number
    and the infinities: they are the strings "NaN", "Infinity" and "-Infinity", as in the JSON of protocol buffers;
    ``float`` reads them back. What the disk refuses raises ``StateError``. One writer at a time.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None

    def append(self, record: Mapping[str, object]) -> None:
        """Add ``record`` as the last line; folders that are missing are made."""
        line = memoryview(_encode(record))
        try:
            if self._file is None:
                self._file = _open_after_last_record(self._path)
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            self.close()
            msg = f"a record cannot be added to {self._path}, {explain(error)}"
            raise StateError(msg) from error

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the records that are there; a line that is none is passed over."""
        if self._path.exists():
            with self._path.open("rb") as lines:
                yield from filter(None, map(_decode, lines))

    def cut(self, keep: Callable[[Mapping[str, Any]], bool]) -> None:
        """Leave only the records that ``keep`` wants, byte for byte, and every whole line that is no JSON object.

        All or nothing at any crash point, and durable; memory holds one line at a time.
        """
        self.close()
        if not self._path.exists():
            return
        shortened = self._path.with_name(f"{self._path.name}.tmp")
        try:
            if _copy_kept(self._path, shortened, keep):
                _replace(self._path, shortened)
        except OSError as error:
            msg = f"{self._path} cannot be shortened, {explain(error)}"
            raise StateError(msg) from error
        finally:
            shortened.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file; a later ``append`` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


_ENCODER = json.JSONEncoder(allow_nan=False)


def _encode(record: Mapping[str, object]) -> bytes:
    try:
        text = _ENCODER.encode(record)
    except ValueError:
        text = _ENCODER.encode(_without_non_finite(record))
    return f"{text}\n".encode("ascii")


def _without_non_finite(value: Any) -> Any:
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case dict():
            return {key: _without_non_finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_non_finite(item) for item in value]
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
    file = path.open("a+b", buffering=0)
    try:
        end = file.seek(0, os.SEEK_END)
        start = _start_of_unended_line(file, end)
        file.seek(start)
        if unended := file.read(end - start):
            if _decode(unended) is None:
                file.truncate(start)
            else:
                file.write(b"\n")
    except OSError:
        file.close()
        raise
    return file


def _start_of_unended_line(file: FileIO, end: int) -> int:
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _copy_kept(source: Path, target: Path, keep: Callable[[Mapping[str, Any]], bool]) -> bool:
    """Return whether the copy differs."""
    differs = False
    with source.open("rb") as lines, target.open("wb") as kept:
        for line in lines:
            ended = line.endswith(b"\n")
            record = _decode(line)
            wanted = ended if record is None else keep(record)
            differs |= not (wanted and ended)
            if wanted:
                kept.write(line if ended else line + b"\n")
    return differs


def _replace(path: Path, successor: Path) -> None:
    files = FileOperations()
    shutil.copymode(path, successor)
    files.sync_file(successor)
    files.rename(successor, path)
    files.sync_folder(path.parent.resolve())
