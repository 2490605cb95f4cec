"""The files in which W&B's library keeps what it records: ``run-ID.wandb`` in the folder of each start of a run."""

from __future__ import annotations

import json
import struct
import zlib
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, final

from holdfast.adapters.shared.files.atomic_replace import move_into_place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wandb.proto.wandb_internal_pb2 import HistoryItem, HistoryRecord

_BLOCK = 32768
_FILE_HEADER = 7
_CHUNK_HEADER = struct.Struct("<IHB")  # checksum of type and content, length of the content, type
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4

STEP = "step"
"""The column with the step of the run."""

OWN_COLUMNS = ("_step", "_runtime", "_timestamp", "_wandb")
"""The columns of W&B itself."""


class Row(NamedTuple):
    """A row of the history: its number, which is W&B's own step, the step of the run, and the columns."""

    number: int
    step: int
    columns: dict[str, float]


class Extent(NamedTuple):
    """The largest row number and the largest step of a file, 0 without rows."""

    number: int
    step: int


@final
class LogReader:
    """Reads the records of a file that may still grow: the file format is LevelDB's log with another file header.

    Ends at the first record that is incomplete or damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = _FILE_HEADER

    def read(self) -> Iterator[bytes]:
        """Yield the records after the last one that was read, each as protobuf of a ``Record``."""
        with self._path.open("rb") as file:
            position, content = self._position, b""
            while True:
                space = _BLOCK - position % _BLOCK
                if space < _CHUNK_HEADER.size:
                    position += space
                file.seek(position)
                header = file.read(_CHUNK_HEADER.size)
                if len(header) < _CHUNK_HEADER.size:
                    return
                checksum, length, kind = _CHUNK_HEADER.unpack(header)
                chunk = file.read(length)
                if len(chunk) < length or zlib.crc32(chunk, zlib.crc32(bytes([kind]))) != checksum:
                    return
                position += _CHUNK_HEADER.size + length
                content = chunk if kind in {_FULL, _FIRST} else content + chunk
                if kind in {_FULL, _LAST}:
                    yield content
                    self._position = position


def rows_of(path: Path) -> Iterator[Row]:
    """Yield the rows of a file that were written with a step."""
    from wandb.proto.wandb_internal_pb2 import Record

    for content in LogReader(path).read():
        record = Record.FromString(content)
        if record.HasField("history") and (row := _row(record.history)) is not None:
            yield row


def extent_of(path: Path) -> Extent:
    """Return the extent of a file; of a row only its number and its step are parsed, as a run may have a million."""
    from wandb.proto.wandb_internal_pb2 import Record

    number = last = 0
    for content in LogReader(path).read():
        record = Record.FromString(content)
        if record.HasField("history") and (place := _place(record.history)) is not None:
            number, last = max(number, place[0]), max(last, place[1])
    return Extent(number, last)


def kinds_of(reader: LogReader) -> Iterator[str]:
    """Yield the kinds of the records that were written since the last call, such as ``history`` for a row."""
    from wandb.proto.wandb_internal_pb2 import Record

    for content in reader.read():
        yield Record.FromString(content).WhichOneof("record_type") or ""


def cut(path: Path, stays: Callable[[Row], bool]) -> None:
    """Replace the file by one without the rows for which ``stays`` is false, and without the summaries of those rows.

    The replacement is atomic and durable. Raises ``OSError``.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    draft = path.with_name(f".{path.name}.new")
    with path.open("rb") as source, draft.open("wb") as target:
        target.write(source.read(_FILE_HEADER))
        waiting: list[tuple[bytes, bool]] = []  # records before the next row; a summary comes before its row
        for content in LogReader(path).read():
            record = Record.FromString(content)
            waiting.append((content, record.HasField("summary")))
            if record.HasField("history"):
                row = _row(record.history)
                if row is not None and not stays(row):
                    waiting = [(other, False) for other, is_summary in waiting[:-1] if not is_summary]
                for kept, _ in waiting:
                    _write(target, kept)
                waiting = []
        for kept, _ in waiting:
            _write(target, kept)
    move_into_place(draft, path)


def _row(history: HistoryRecord) -> Row | None:
    place = _place(history)
    if place is None:
        return None
    columns = {_name(item): item.value_json for item in history.item}
    own = (STEP, *OWN_COLUMNS)
    return Row(*place, {name: float(json.loads(value)) for name, value in columns.items() if name not in own})


def _place(history: HistoryRecord) -> tuple[int, int] | None:
    """Return the number of a row and the step of the run, None without a step."""
    number, step = history.step.num, None
    for item in history.item:
        name = _name(item)
        if name == "_step":
            number = int(item.value_json)
        elif name == STEP:
            step = int(float(json.loads(item.value_json)))
    return None if step is None else (number, step)


def _name(item: HistoryItem) -> str:
    return str(item.nested_key[-1] if item.nested_key else item.key)


def _write(target: BinaryIO, content: bytes) -> None:
    """Append a record, in chunks that do not cross the end of a block."""
    rest, kind = content, _FIRST
    while True:
        space = _BLOCK - target.tell() % _BLOCK
        if space < _CHUNK_HEADER.size:
            target.write(bytes(space))
            continue
        chunk, rest = rest[: space - _CHUNK_HEADER.size], rest[space - _CHUNK_HEADER.size :]
        if not rest:
            kind = _FULL if kind == _FIRST else _LAST
        target.write(_CHUNK_HEADER.pack(zlib.crc32(chunk, zlib.crc32(bytes([kind]))), len(chunk), kind) + chunk)
        if not rest:
            return
        kind = _MIDDLE
