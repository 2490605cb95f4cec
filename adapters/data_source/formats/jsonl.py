"""Reads JSON Lines: a document is a field of the JSON object in a line."""

from __future__ import annotations

import io
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, final

import orjson

from holdfast.adapters.data_source.formats.records import (
    BYTE_ORDER_MARK,
    Fields,
    Part,
    document,
    kind_of,
    not_utf8,
    record_document,
    shown,
    too_long,
)
from holdfast.ports.data_source import Document, Rejected

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PIECE_BYTES = 1 << 16


def read_jsonl(
    stream: io.BufferedReader, part: Part, fields: Fields, record_bytes: int
) -> Iterator[Document | Rejected]:
    """Yield the text of each line's JSON object; empty lines and texts of white space alone are left out."""
    start, stop = _to_line(stream, part), part.limit
    parse, field, has_filter, has_kept = orjson.loads, fields.text, bool(fields.filter), bool(fields.kept)
    is_text = fields.task == "text"
    names_paths = any("." in name for name in fields.names)
    while start < stop and (line := stream.readline(record_bytes + 1)):
        end = start + len(line)
        if len(line) > record_bytes:
            end += 0 if line.endswith(b"\n") else _skip_line(stream, stop - end)
            yield too_long(_place(part, start), start, end, record_bytes)
        else:
            try:
                record = parse(line) if is_text else {}
                text = record[field]
                is_plain = type(text) is str and not names_paths and not has_filter and text and not text.isspace()
            except (ValueError, KeyError, TypeError):
                is_plain = False
            if is_plain:
                yield Document(text, start, end, fields.kept_of(record)) if has_kept else Document(text, start, end)
            elif judged := judge_record(line, part.file, _place(part, start), start, fields, "line"):
                yield judged
        start = end


def judge_record(
    content: bytes, file: str, place: str, start: int, fields: Fields, what: str = "record"
) -> Document | Rejected | None:
    """Return the document of the record that is ``content``, its rejection, or None if it is left out.

    ``what`` is the word for it in messages, and ``start`` its position in ``file``.
    """
    end = start + len(content)
    if not content.strip():
        return None
    try:
        record = _parsed(content)
    except UnicodeDecodeError as error:
        return not_utf8(file, start + error.start, start, end)
    except (ValueError, RecursionError) as error:
        problem = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        if content.startswith(b"[") and start == 0:
            return Rejected(f"{place}: the file seems to be a JSON array: set data.format=json", start, end)
        return Rejected(f"{place}: the {what} is not JSON ({problem}): each must be one JSON object", start, end)
    if not isinstance(record, dict):
        return Rejected(f"{place}: the {what} is {kind_of(record)}, not a JSON object: repair it", start, end)
    return _document(record, place, start, end, fields)


def _document(
    record: Mapping[str, object], place: str, start: int, end: int, fields: Fields
) -> Document | Rejected | None:
    if (problem := fields.ambiguity_in(record)) is not None:
        return Rejected(f"{place}: {problem}", start, end)
    if not fields.wants(record):
        return None
    if fields.task != "text":
        return record_document(record, place, start, end, fields)
    is_there, text = fields.text_of(record)
    if is_there:
        return document(text, place, start, end, fields, record)
    reason = (
        f"{place}: the field {fields.text!r} is missing; there is {shown(record)}: set data.text_field to the field "
        "that holds the text"
    )
    return Rejected(reason, start, end)


def _parsed(line: bytes) -> object:
    try:
        return orjson.loads(line)
    except ValueError:  # Python's parser accepts more: NaN, a byte order mark
        return json.loads(line.decode().removeprefix(BYTE_ORDER_MARK))


def _place(part: Part, start: int) -> str:
    return f"{part.file}, line at byte {start}"


def _to_line(stream: io.BufferedReader, part: Part) -> int:
    """Move ``stream`` to the first line that begins in ``part``, and return its position."""
    if part.start == 0:
        return 0
    stream.seek(part.start - 1)
    return part.start - 1 + _skip_line(stream, part.limit - part.start + 1)


def _skip_line(stream: io.BufferedReader, limit: float) -> int:
    """Skip the rest of a line, or at least ``limit`` bytes of it; return the number of bytes skipped."""
    skipped = 0
    while skipped < limit and (piece := stream.readline(_PIECE_BYTES)):
        skipped += len(piece)
        if piece.endswith(b"\n"):
            break
    return skipped


JsonForm = Literal["json", "jsonl"]

_MARK = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_BETWEEN = b" \t\r\n,"
BEGIN_BYTES = 1 << 16  # of a file that show what it holds
_OTHER = {signs: re.compile(b"[^" + re.escape(signs) + b"]") for signs in (_SPACE, _BETWEEN)}
_OUTSIDE = re.compile(rb'["{}\[\]]')
_SCALAR_END = re.compile(rb"[\s,\]]")
_IN_TEXT = re.compile(rb'"|\\.?', re.DOTALL)


def form_of_json(begin: bytes, fields: Fields) -> JsonForm | None:
    """Return whether a file that begins with ``begin`` is an array or has an object on each line; None for neither.

    An object that is alone in its line and its file is a record if it has one of the ``fields``.
    """
    begin = begin.removeprefix(_MARK).lstrip(_SPACE)
    if begin.startswith(b"["):
        return "json"
    line, end, behind = begin.partition(b"\n")
    if not line.startswith(b"{"):
        return None if begin else "jsonl"
    if not end and len(begin) >= BEGIN_BYTES // 2:
        return "jsonl"  # a long line
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return (
        "jsonl"
        if behind.strip(_SPACE) or any(name in record or name.partition(".")[0] in record for name in fields.content)
        else None
    )


def read_json_array(
    stream: io.BufferedReader, part: Part, fields: Fields, record_bytes: int
) -> Iterator[Document | Rejected]:
    """Yield the text of each object of the array; a part of the file is its records from ``part.start`` on."""
    text = _ArrayBytes(stream, stream.seek(part.start) if part.start else 0)
    problem = "" if part.start else text.enter_array()
    while not problem and not text.is_at_end:
        if (problem := text.skip_to_record()) or text.is_at_end:
            break
        start = text.position
        record = text.take_record(record_bytes)
        place = f"{part.file}, record at byte {start}"
        if record is None:
            problem = "it ends in the middle of its array"
        elif len(record) > record_bytes:
            yield too_long(place, start, text.position, record_bytes)
        elif judged := judge_record(record, part.file, place, start, fields):
            yield judged
    if problem:
        yield Rejected(f"{part.file}, byte {text.position}: {problem}: repair it or leave it out", text.position, None)


def first_records(stream: io.BufferedReader, form: JsonForm, most: int) -> list[dict[str, object]]:
    """Return up to ``most`` objects from the beginning of a file of ``form``; what is no object is left out."""
    records: list[object] = []
    if form == "jsonl":
        *lines, rest = stream.read(BEGIN_BYTES).split(b"\n", most)
        texts = [*lines, b"" if len(lines) == most else rest]
    else:
        array = _ArrayBytes(io.BytesIO(stream.read(BEGIN_BYTES)), 0)
        texts, problem = [], array.enter_array()
        while not problem and len(texts) < most and not array.is_at_end:
            problem = array.skip_to_record()
            texts.append(array.take_record(BEGIN_BYTES) or b"")
    for text in texts:
        with suppress(ValueError, RecursionError):
            records.append(json.loads(text.removeprefix(_MARK)))
    return [record for record in records if isinstance(record, dict)]


@final
@dataclass(slots=True)
class _ArrayBytes:
    """The bytes of an array from ``position`` on, of which a piece is held at a time."""

    stream: io.BufferedIOBase
    position: int
    is_at_end: bool = False
    _held: bytes = b""
    _at: int = 0
    _kept: bytearray = field(default_factory=bytearray)

    def enter_array(self) -> str:
        """Move behind the bracket that opens the array; return what is wrong, empty for nothing."""
        self._fill()
        if self._held.startswith(_MARK):
            self._move(len(_MARK))
        first = self._skip(_SPACE)
        self.is_at_end = not first
        if first and first != b"[":
            return "it holds neither a JSON array of records nor an object on each line"
        self._move(len(first))
        return ""

    def skip_to_record(self) -> str:
        """Move to the next record, or behind the end of the array; return what is wrong, empty for nothing."""
        first = self._skip(_BETWEEN)
        if not first:
            return "it ends in the middle of its array"
        if first == b"]":
            self._move(1)
            self.is_at_end = True
            return "there is more behind the end of its array" if self._skip(_SPACE) else ""
        return "a bracket closes what was not opened" if first == b"}" else ""

    def take_record(self, most: int) -> bytes | None:
        """Return the record here and move behind it, None if the file ends within it.

        Of a record that is longer than ``most`` bytes, only a little more than that is kept.
        """
        self._kept = bytearray()
        depth, is_text = 0, False
        while self._at < len(self._held) or self._fill():
            is_scalar = not depth and not is_text and self._held[self._at] not in b'"{['
            sign = (_SCALAR_END if is_scalar else _IN_TEXT if is_text else _OUTSIDE).search(self._held, self._at)
            if sign is None:
                self._keep(len(self._held), most)
                continue
            self._keep(sign.start() if is_scalar or sign[0] == b"\\" else sign.end(), most)
            if sign[0] == b"\\":  # what it escapes is in the next piece
                if not self._fill():
                    return None
                continue
            if is_text:
                is_text = sign[0] != b'"'
            elif not is_scalar:
                is_text = sign[0] == b'"'
                depth += 1 if sign[0] in b"{[" else -1 if sign[0] in b"}]" else 0
            if not depth and not is_text:
                return bytes(self._kept)
        return None

    def _keep(self, until: int, most: int) -> None:
        if len(self._kept) <= most:
            self._kept += self._held[self._at : min(until, self._at + most + 1)]
        self._move(until - self._at)

    def _skip(self, signs: bytes) -> bytes:
        """Move behind ``signs``, and return the byte there, nothing at the end of the file."""
        while self._at < len(self._held) or self._fill():
            other = _OTHER[signs].search(self._held, self._at)
            self._move((len(self._held) if other is None else other.start()) - self._at)
            if other is not None:
                return other[0]
        return b""

    def _move(self, size: int) -> None:
        self._at += size
        self.position += size

    def _fill(self) -> bool:
        piece = self.stream.read(_PIECE_BYTES)
        self._held, self._at = self._held[self._at :] + piece, 0
        return bool(piece)
