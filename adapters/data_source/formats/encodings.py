"""Turns text in any encoding into UTF-8, of which the readers of text formats make documents."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from holdfast.adapters.data_source.formats.compression import ForwardStream

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator

_PIECE_BYTES = 1 << 16
_MARKS = {  # the longer ones first, as one begins with another
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_ERRORS = "holdfast.mark"
_UNDECODED = "\udcff"  # no UTF-8, so the reader of the format rejects the record that holds it

codecs.register_error(_ERRORS, lambda error: (_UNDECODED, error.end))  # type: ignore[attr-defined]


def encoding_of(begin: bytes) -> str:
    """Return the encoding of a text that begins with ``begin``, by its byte order mark; utf-8 without one."""
    return next((name for mark, name in _MARKS.items() if begin.startswith(mark)), "utf-8")


def is_utf8(encoding: str) -> bool:
    """Return whether ``encoding`` is a name of UTF-8."""
    return codecs.lookup(encoding).name in ("utf-8", "utf-8-sig")


def as_utf8(stream: io.BufferedReader, encoding: str) -> io.BufferedReader:
    """Return the text of ``stream``, which is at its start, in UTF-8; positions are those of the result.

    What does not decode becomes bytes that are not UTF-8.
    """
    if is_utf8(encoding):
        return stream
    return ForwardStream.buffered(_decoded(stream.read, encoding), encoding)


def with_line_feeds(stream: io.BufferedReader) -> io.BufferedReader:
    """Return ``stream``, which is at its start, with line feeds if its lines end with carriage returns alone."""
    begin = stream.peek(_PIECE_BYTES)
    if b"\r" not in begin or b"\n" in begin:
        return stream
    pieces = iter(lambda: stream.read(_PIECE_BYTES).replace(b"\r", b"\n"), b"")
    return ForwardStream.buffered(pieces, "text")


def _decoded(read: Callable[[int], bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)(_ERRORS)
    while piece := read(_PIECE_BYTES):
        yield decoder.decode(piece).encode("utf-8", "surrogatepass")
    yield decoder.decode(b"", final=True).encode("utf-8", "surrogatepass")
