"""How the bytes of a file become documents, whatever the file lies on."""

from __future__ import annotations

import codecs
import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from domain.errors import DataError
from ports.data_source import Document

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

_BYTE_ORDER_MARK = "\ufeff"
DOCUMENT_BYTES = 64 << 10
LINE_BYTES = 64 << 20

_READING = 1  # raise it when the same bytes become other documents
_MOST_FIELDS_SHOWN = 10


def fingerprint_of(*how: object) -> str:
    """Return a short text that identifies what is read and how, given as JSON values."""
    return blake2b(json.dumps([_READING, *how]).encode(), digest_size=16).hexdigest()


def read_txt(stream: io.BufferedReader, name: str, start: int, document_bytes: int) -> Iterator[Document]:
    """Yield plain text in pieces of at most ``document_bytes``, cut behind a line where there is one.

    ``stream`` stands at byte ``start``; a piece depends on nothing before it, so reading again from the end of one
    gives the same rest. Pieces of white space alone are left out, and so is a byte order mark at byte 0.
    """
    window = b""
    while window := window + stream.read(document_bytes - len(window)):
        is_last = len(window) < document_bytes
        cut = len(window) if is_last else window.rfind(b"\n") + 1
        # without a line end the window is cut behind its last complete character
        text, used = _decode(window[:cut], name, start) if cut else _decode(window, name, start, is_whole=False)
        if "\0" in text:
            position = start + window.index(b"\0")
            msg = f"{name}: there is a NUL at byte {position}: it seems to be a binary file, leave it out"
            raise DataError(msg)
        if start == 0:
            text = text.removeprefix(_BYTE_ORDER_MARK)
        yield from _documents(text, start, start + used)
        start += used
        window = window[used:]


def read_jsonl(
    stream: io.BufferedReader, name: str, start: int, text_field: str, line_bytes: int
) -> Iterator[Document]:
    """Yield the text of each line's JSON object; ``stream`` stands at byte ``start``, which is a line's first.

    Empty lines and texts of white space alone are left out. A line longer than ``line_bytes`` is an error: it would
    have to be held in memory whole.
    """
    number = 1 if start == 0 else None
    while line := stream.readline(line_bytes + 1):
        where = f"{name}, line {number} at byte {start}" if number else f"{name}, line at byte {start}"
        if len(line) > line_bytes:
            msg = f"{where}: longer than {line_bytes:,} bytes; break it into several, or it is not JSON Lines"
            raise DataError(msg)
        end = start + len(line)
        if line.strip():
            text, _ = _decode(line, name, start)
            yield from _documents(_text_of(text, where, text_field), start, end)
        start = end
        number = number + 1 if number else None


def _documents(text: str, start: int, end: int) -> Iterator[Document]:
    if text and not text.isspace():
        yield Document(text, start, end)


def _decode(content: bytes, name: str, start: int, *, is_whole: bool = True) -> tuple[str, int]:
    try:
        return codecs.utf_8_decode(content, "strict", is_whole)
    except UnicodeDecodeError as error:
        msg = (
            f"{name}: byte {start + error.start} is not UTF-8; it seems to be a binary file or text in another "
            "encoding: convert it to UTF-8 or leave it out"
        )
        raise DataError(msg) from error


def _text_of(line: str, where: str, text_field: str) -> str:
    record = _record_of(line, where)
    text = record.get(text_field)
    if not isinstance(text, str):
        is_there = text_field in record
        problem = f"holds {_kind_of(text)}, not text" if is_there else f"is missing; there is {_names(record)}"
        msg = f"{where}: the field {text_field!r} {problem}: set data.text_field to the field that holds the text"
        raise DataError(msg)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = (
            f"{where}: the field {text_field!r} holds half of a surrogate pair (\\u{ord(text[error.start]):04x}) at "
            f"character {error.start}, which is no Unicode text: repair the record"
        )
        raise DataError(msg) from error
    return text


def _record_of(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line.removeprefix(_BYTE_ORDER_MARK))
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        msg = f"{where}: not JSON ({reason}); each line must be one JSON object"
        raise DataError(msg) from error
    if not isinstance(record, dict):
        msg = f"{where}: {_kind_of(record)}, not a JSON object"
        raise DataError(msg)
    return record


def _kind_of(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _names(record: dict[str, Any]) -> str:
    names = [repr(name) for name in list(record)[:_MOST_FIELDS_SHOWN]]
    more = ", ..." if len(record) > _MOST_FIELDS_SHOWN else ""
    return f"{', '.join(names)}{more}" if names else "no field at all"
