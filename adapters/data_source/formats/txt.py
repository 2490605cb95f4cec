"""Reads plain text and cuts it into documents."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING

from holdfast.adapters.data_source.formats.records import BYTE_ORDER_MARK, Part, not_utf8, too_long
from holdfast.ports.data_source import Document, Rejected

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator

_PIECE_BYTES = 1 << 16


def read_txt(stream: io.BufferedReader, part: Part, document_bytes: int) -> Iterator[Document | Rejected]:
    """Yield plain text in pieces, cut after the last line that ends in each ``document_bytes`` of the file.

    If no line ends there, the cut is after a character. The cuts depend only on the place in the file, so any division
    into parts gives the same pieces. Pieces of white space alone are left out, and so is a byte order mark.
    """
    for start, content in _pieces(stream, part.start, document_bytes):
        if start >= part.limit:
            return
        if start >= part.start and (judged := _judge(content, part.file, start)):
            yield judged


def read_whole_txt(stream: io.BufferedReader, part: Part) -> Iterator[Document | Rejected]:
    """Yield all the text as one document, which must fit into memory, unless it is white space alone."""
    content = stream.read()
    if part.start == 0 and (judged := _judge(content, part.file, 0)):
        yield judged


def read_separated_txt(
    stream: io.BufferedReader, part: Part, separator: bytes, record_bytes: int
) -> Iterator[Document | Rejected]:
    """Yield the texts between the occurrences of ``separator``; one longer than ``record_bytes`` is rejected unread.

    Occurrences may overlap, and no byte of one belongs to a document. So the documents depend only on the place in the
    file. Texts of white space alone are left out, and so is a byte order mark.
    """
    for start, content, end in _between(stream, part, separator, record_bytes):
        if content is None:
            yield too_long(f"{part.file}, document at byte {start}", start, end, record_bytes)
        elif judged := _judge(content, part.file, start):
            yield judged


def _between(
    stream: io.BufferedReader, part: Part, separator: bytes, most: int
) -> Iterator[tuple[int, bytes | None, int]]:
    """Yield start, text and end of each text that begins in ``part``; one of more than ``most`` bytes is None."""
    width = len(separator)
    base = start = max(part.start - width, 0)  # a text begins in the part if a separator ends there
    stream.seek(base)
    held, seen = bytearray(), 0  # the bytes from ``base`` on, and up to where no separator begins
    is_last = False
    while not is_last:
        held += (block := stream.read(_PIECE_BYTES))
        is_last = not block
        while (at := held.find(separator, seen)) >= 0:
            end = base + at
            if end > start >= part.start:
                yield start, bytes(held[start - base : at]) if end - start <= most else None, end
            start, seen = end + width, at + 1
            if start >= part.limit:
                return
        seen = len(held) if is_last else max(seen, len(held) - width + 1)
        is_needed = start >= part.start and base + seen - start <= most
        if not is_needed and base + seen + width >= part.limit:
            break
        kept_from = min(seen, start - base) if is_needed else seen
        del held[:kept_from]
        base, seen = base + kept_from, seen - kept_from
    if (end := base + seen) > start >= part.start:
        yield start, bytes(held[start - base :]) if end - start <= most else None, end


def _pieces(stream: io.BufferedReader, position: int, size: int) -> Iterator[tuple[int, bytes]]:
    # if there is a cut at ``position``, it belongs to the block that ends there or later
    start = max(position - 1, 0) // size * size
    stream.seek(start)
    held = b""
    while block := stream.read(size):
        cut = _cut(block) if stream.peek(1) else len(block)
        yield start, held + block[:cut]
        start += len(held) + cut
        held = block[cut:]


def _cut(block: bytes) -> int:
    behind_line = block.rfind(b"\n") + 1
    if behind_line:
        return behind_line
    _, complete = codecs.utf_8_decode(block[-4:], "replace", False)
    return max(len(block) - 4, 0) + complete


def _judge(content: bytes, file: str, start: int) -> Document | Rejected | None:
    end = start + len(content)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        return not_utf8(file, start + error.start, start, end)
    if (nul := content.find(b"\0")) >= 0:
        reason = (
            f"{file}: there is a NUL at byte {start + nul}: it seems to be a binary file, leave it out; or set "
            "data.encoding if it is UTF-16"
        )
        return Rejected(reason, start, end, kind="not in the encoding")
    if start == 0:
        text = text.removeprefix(BYTE_ORDER_MARK)
    return Document(text, start, end) if text and not text.isspace() else None
