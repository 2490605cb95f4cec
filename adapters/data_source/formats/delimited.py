"""Reads comma- and tab-separated values with a header: a document is one column of a row."""

from __future__ import annotations

import codecs
import csv
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from holdfast.adapters.data_source.formats.compression import ForwardStream
from holdfast.adapters.data_source.formats.records import (
    BYTE_ORDER_MARK,
    Fields,
    Part,
    document,
    not_utf8,
    record_document,
    shown,
    too_long,
)
from holdfast.ports.data_source import Rejected

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from holdfast.ports.data_source import Document

Model = tuple[str, list[str]]

_PIECE_BYTES = 1 << 16
USUAL_DELIMITERS = {"csv": ",", "tsv": "\t"}
_DELIMITERS = ",;\t|"  # in the order in which they are tried


@final
@dataclass(frozen=True, slots=True)
class Dialect:
    """How rows are divided: by ``delimiter``, or by the usual one of other formats if ``is_certain`` is false.

    An empty ``quote`` means that nothing is quoted.
    """

    delimiter: str
    is_certain: bool = False
    quote: str = '"'

    def is_usual(self, form: str) -> bool:
        """Return whether the delimiter is that of ``form``, csv or tsv, or was asked for."""
        return self.is_certain or self.delimiter == USUAL_DELIMITERS[form]

    def rows(self, lines: Iterable[str]) -> Iterator[list[str]]:
        """Return the rows of ``lines``; reading them may raise ``csv.Error``."""
        if not self.quote:
            return csv.reader(lines, delimiter=self.delimiter, quoting=csv.QUOTE_NONE, strict=True)
        return csv.reader(lines, delimiter=self.delimiter, quotechar=self.quote, strict=True)

    def others(self) -> Iterator[Dialect]:
        """Yield this dialect, and those with other delimiters if it is not certain."""
        yield self
        if not self.is_certain:
            yield from (replace(self, delimiter=each) for each in _DELIMITERS if each != self.delimiter)


def read_header(
    stream: io.BufferedReader, dialect: Dialect, record_bytes: int, fields: Fields
) -> tuple[list[str], Dialect]:
    """Return the names of the columns, and the dialect with the delimiter that is used.

    It is the first one by which the columns include ``fields``; if none does so, that of ``dialect`` if it divides the
    header, or else the one that gives most columns. Raises ``ValueError`` if the first row is not a header.
    """
    lines = _Lines(stream, 0, record_bytes, dialect, is_former=fields.is_former)
    taken: list[str] = []
    names: list[str] = []
    problem: csv.Error | None = None
    try:
        names = next(filter(None, dialect.rows(_kept(lines, taken))), [])
    except csv.Error as error:
        problem = error
    except _TooLongError as error:
        raise _no_header(error) from error
    if (not names and problem is None) or lines.bad_byte is not None:
        msg = "it does not start with a header of column names in UTF-8"
        raise ValueError(msg)
    names = [name.removeprefix(BYTE_ORDER_MARK) if not at else name for at, name in enumerate(names)]
    if names and fields.missing(names, "") is None:
        return names, dialect
    readings = [(names, dialect)]
    for other in list(dialect.others())[1:]:
        with suppress(csv.Error):
            readings.append((_only_row(taken, other), other))
    fitting = [each for each in readings if each[0] and fields.missing(each[0], "") is None]
    if not fitting and len(names) > 1:
        return names, dialect
    best = max(fitting or readings, key=lambda each: len(each[0]))
    if problem is not None and len(best[0]) <= 1 and not fitting:
        raise _no_header(problem) from problem
    return best


def _only_row(lines: Sequence[str], dialect: Dialect) -> list[str]:
    """Return the row that all of ``lines`` are, empty if they are several."""
    rest = iter(lines)
    names = next(filter(None, dialect.rows(rest)), [])
    return [] if next(rest, None) is not None else names


def _no_header(error: Exception) -> ValueError:
    return ValueError(f"its first row is not a header of column names ({error})")


def read_delimited(
    stream: io.BufferedReader,
    part: Part,
    fields: Fields,
    dialect: Dialect,
    record_bytes: int,
    model: Model | None = None,
) -> Iterator[Document | Rejected]:
    """Yield the text column of each row; a quoted field may hold line ends. Empty rows are left out.

    The header is read first, for any ``part.start``, which is 0 or the beginning of a row. ``model`` is the name of
    another file and its columns; this file must have the same columns, in any order.
    """
    stream = with_line_feeds(stream)
    if not stream.peek(1):
        return
    try:
        columns, dialect = read_header(stream, dialect, record_bytes, fields)
    except ValueError as error:
        reason = f"{part.file}: {error}: put one there, leave the file out or set data.format"
        yield Rejected(reason, part.start, None)
        return
    if problem := fields.missing(columns, part.file) or _difference(columns, part.file, model):
        yield Rejected(problem, part.start, None)
        return
    position = stream.tell()
    if part.start > position:
        position = stream.seek(part.start)
    yield from _records(
        _Lines(stream, position, record_bytes, dialect, is_former=fields.is_former),
        columns,
        part,
        fields.as_text(),
    )


def _kept(lines: Iterable[str], taken: list[str]) -> Iterator[str]:
    for line in lines:
        taken.append(line)
        yield line


def _difference(columns: Sequence[str], file: str, model: Model | None) -> str | None:
    if model is None or set(model[1]) == set(columns):
        return None
    return (
        f"{file}: the header {shown(columns)} differs from that of {model[0]}, {shown(model[1])}: give all files of a "
        "path the same columns, or list them as separate paths"
    )


def _records(lines: _Lines, columns: Sequence[str], part: Part, fields: Fields) -> Iterator[Document | Rejected]:
    _allow_fields_of(lines.record_bytes)
    rows = lines.dialect.rows(lines)
    text = columns.index(fields.text) if fields.task == "text" else None
    while True:
        start = lines.begin()
        place = f"{part.file}, row at byte {start}"
        try:
            row = next(rows, None)
        except csv.Error as error:
            reason = f"{place}: the row cannot be read ({error}): repair its quotes or leave it out"
            yield Rejected(reason, start, lines.position)
            continue
        except _TooLongError:
            lines.skip_row()
            yield too_long(place, start, lines.position, lines.record_bytes)
            continue
        if row is None:
            return
        judged: Document | Rejected | None = None
        if lines.bad_byte is not None:
            judged = not_utf8(part.file, lines.bad_byte, start, lines.position)
        elif row and len(row) != len(columns):
            reason = f"{place}: the row has {len(row)} fields and the header {len(columns)}: repair it or leave it out"
            judged = Rejected(reason, start, lines.position)
        elif row:
            is_record = text is None or fields.filter or fields.kept
            record = dict(zip(columns, row, strict=True)) if is_record else {}
            if not fields.filter or fields.wants(record):
                judged = (
                    record_document(record, place, start, lines.position, fields)
                    if text is None
                    else document(row[text], place, start, lines.position, fields, record or None)
                )
        if judged:
            yield judged


def _allow_fields_of(size: int) -> None:
    # the module has one limit for the whole process, 128 KiB at first: it is only ever raised
    if csv.field_size_limit() < size:
        csv.field_size_limit(size)


class _TooLongError(Exception):
    def __str__(self) -> str:
        return "it is too long"


@final
class _Lines:
    """Lines of text for ``csv.reader``, which counts no bytes; one that is not UTF-8 is marked in ``bad_byte``."""

    def __init__(
        self, stream: io.BufferedReader, position: int, record_bytes: int, dialect: Dialect, *, is_former: bool
    ) -> None:
        self.dialect = dialect
        self._is_former = is_former  # then a byte order mark is part of a quoted name
        self.position = position
        self.record_bytes = record_bytes
        self.bad_byte: int | None = None
        self._stream = stream
        self._start = position
        self._quotes = 0
        self._is_row_end = False

    def begin(self) -> int:
        self._start, self._quotes, self.bad_byte = self.position, 0, None
        return self._start

    def skip_row(self) -> None:
        """Skip the rest of a row; a line end is inside quotes if the number of quotes before it is odd."""
        while not self._is_row_end and self._take(_PIECE_BYTES):
            pass

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        room = self.record_bytes - (self.position - self._start)
        start = self.position
        line = self._take(room + 1)
        if len(line) > room:
            raise _TooLongError
        if not line:
            raise StopIteration
        if start == 0 and not self._is_former:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            return line.decode()
        except UnicodeDecodeError as error:
            if self.bad_byte is None:
                self.bad_byte = start + error.start
            return line.decode(errors="surrogateescape")

    def _take(self, size: int) -> bytes:
        piece = self._stream.readline(size)
        self.position += len(piece)
        self._quotes += piece.count(self.dialect.quote.encode()) if self.dialect.quote else 0
        self._is_row_end = piece.endswith(b"\n") and self._quotes % 2 == 0
        return piece


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
