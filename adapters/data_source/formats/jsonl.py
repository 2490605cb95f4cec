"""Reads JSON Lines: a document is a field of the JSON object in a line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

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
    import io
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
            elif found := judge_record(line, part.file, _place(part, start), start, fields, "line"):
                yield found
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
