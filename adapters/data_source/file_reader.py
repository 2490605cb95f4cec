"""Splits a file of a known format into parts and reads the documents of a part."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import chain
from time import monotonic
from typing import TYPE_CHECKING, Any, Self, final

from holdfast.adapters.data_source.formats.compression import CorruptDataError, unpacked
from holdfast.adapters.data_source.formats.delimited import (
    USUAL_DELIMITERS,
    Dialect,
    Model,
    as_utf8,
    encoding_of,
    is_utf8,
    read_delimited,
    read_header,
    with_line_feeds,
)
from holdfast.adapters.data_source.formats.jsonl import (
    BEGIN_BYTES,
    first_records,
    form_of_json,
    read_json_array,
    read_jsonl,
)
from holdfast.adapters.data_source.formats.records import Fields, Limits, Part, Reading
from holdfast.adapters.data_source.formats.txt import read_separated_txt, read_txt, read_whole_txt
from holdfast.domain.data.data_files import FIRST_RULES
from holdfast.domain.errors import ConfigurationError, DataError, StateError
from holdfast.domain.urls import describe
from holdfast.ports.data_source import Document, Rejected

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator, Mapping
    from typing import TypeAlias

    from holdfast.adapters.data_source.file_access import FileAccess
    from holdfast.adapters.data_source.formats.compression import Compression, Format
    from holdfast.adapters.data_source.formats.jsonl import JsonForm
    from holdfast.adapters.data_source.remote_file import ListedFile

    ModelOf: TypeAlias = Callable[["SourceFile"], Model | None]

_TABLES = ("parquet", "arrow")
_WHOLE = ("json", "csv", "tsv")
_MARK_BYTES = 4
_BEGIN_BYTES = 1 << 16
_FIRST_RECORDS = 100
_COUNTED_AT_ONCE = 1 << 20  # bytes
_SECONDS_TO_COUNT = 5.0  # between a bad line and its message


@final
@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file to be read, the path of the data source in which it was found, and its format and compression."""

    stored: ListedFile
    path: str
    format: Format
    compression: Compression

    @classmethod
    def checked(cls, stored: ListedFile, path: str, form: Format, compression: Compression) -> Self:
        """Return the file.

        Raises ``DataError`` if its format cannot be read in its compression, ``ConfigurationError`` if a package is
        missing.
        """
        if form in _TABLES and compression != "none":
            msg = f"{stored.unit.name} is {form} inside {compression}, which cannot be read in parts: unpack it"
            raise DataError(msg)
        if form in _TABLES and find_spec("pyarrow") is None:
            msg = f'{stored.unit.name} needs another package: pip install "holdfast-lm[parquet]"'
            raise ConfigurationError(msg)
        return cls(stored, path, form, compression)

    @property
    def name(self) -> str:
        """Return the name of the file for messages."""
        return self.stored.unit.name


@final
@dataclass(frozen=True, slots=True)
class FileReader:
    """Reads files: which fields, how much at once, and from where."""

    fields: Fields
    limits: Limits
    access: FileAccess
    reading: Reading = field(default_factory=Reading)
    _encodings: dict[tuple[str, str], str] = field(default_factory=dict, compare=False)

    def split(self, file: SourceFile) -> list[tuple[int, int]]:
        """Return parts of ``file``, each by the position at which it starts and about its bytes.

        Only a file that is larger than a part is opened; a damaged table becomes one part, which is rejected when
        read. Raises ``DataError`` if a table cannot be reached.
        """
        size, step = file.stored.unit.size, self.limits.unit_bytes
        if size <= step or file.compression != "none" or file.format in _WHOLE or self._is_document(file):
            return [(0, size)]
        if file.format in _TABLES:
            return self._split_table(file)
        with suppress(DataError):  # a file that does not answer is one when its parts are read
            if not is_utf8(self._encoding(file)):
                return [(0, size)]
        return [(start, min(step, size - start)) for start in range(0, size, step)]

    def form(self, file: SourceFile) -> str:
        """Return the name of the form in which ``file`` is read: its format, its compression, and JSON in its columns.

        A table is opened only if other columns than the text are read; a damaged one has no columns.
        """
        if file.format not in _TABLES:
            return file.format if file.compression == "none" else f"{file.format}.{file.compression}"
        if len(self.fields.names) == 1 or self.fields.is_former:
            return file.format
        from holdfast.adapters.data_source.formats.columnar import reads_json

        try:
            schema = self._schema(file)
        except Exception:  # noqa: BLE001 - the reader of the file will say what is wrong with it
            return file.format
        return f"{file.format}+json" if reads_json(schema, self.fields) else file.format

    def read(self, file: SourceFile, part: Part, model_of: ModelOf) -> Iterator[Document | Rejected]:
        """Yield the documents of ``part``; an error that ends the reading is reported as a rejected record.

        ``model_of`` returns the file whose columns a csv file must have.
        """
        position = part.start
        try:
            is_random = file.format in _TABLES
            with self.access.opened(file.stored, is_random=is_random, start=part.start, until=part.stop) as stream:
                if file.stored.unit.size == 0:  # in a table or an archive too, it is just empty
                    stream.read()
                    return
                for judged in self._documents(file, stream, part, model_of):
                    yield self._explained(file, part, judged)
                    position = position if judged.end is None else judged.end
        except (ConfigurationError, StateError):
            raise
        except Exception as error:
            if isinstance(error, MemoryError) and file.format not in _TABLES:  # a damaged table may ask for any size
                raise
            judged = Rejected(_sentence(error, file, position), position, None, is_passing=not _is_damage(error, file))
            yield self._explained(file, part, judged)

    def expect(self, file: SourceFile, part: Part) -> None:
        """Begin to fetch ``part``, which will be read soon, if its file is remote and read from front to back."""
        if self.is_expected(file):
            is_entered = file.compression == "none" and file.format not in _WHOLE
            before = len((self.reading.separator or "\n").encode())
            begin = max(0, part.start - before) if is_entered else 0  # a part begins after the preceding end
            self.access.expect(file.stored, part.start, part.stop, begin=begin)

    def is_expected(self, file: SourceFile) -> bool:
        """Return whether ``expect`` fetches parts of ``file``, if it is remote: tables are read at random places."""
        return file.format not in _TABLES

    def header(self, file: SourceFile) -> tuple[list[str], Dialect] | None:
        """Return the columns of a csv or tsv file and how they are divided, None if it has none to read."""
        with self.access.opened(file.stored, is_random=True) as packed:
            try:
                stream = with_line_feeds(self._text(file, packed))
                return read_header(stream, self._dialect(file), self.limits.record_bytes, self.fields)
            except (ValueError, CorruptDataError):
                return None

    def form_of_json(self, file: SourceFile) -> JsonForm | None:
        """Return whether a JSON file holds an array or an object on each line; None for neither.

        A file that cannot be unpacked counts as lines, and is rejected when they are read.
        """
        with self.access.opened(file.stored, is_random=True) as packed:
            try:
                return form_of_json(self._text(file, packed).read(BEGIN_BYTES), self.fields)
            except CorruptDataError:
                return "jsonl"

    def begin(self, file: SourceFile, num_bytes: int = _BEGIN_BYTES) -> bytes:
        """Return the first ``num_bytes`` of a text file, in UTF-8; all of them for -1."""
        with self.access.opened(file.stored, is_random=True) as stored:
            return self._text(file, stored).read(num_bytes)

    def other_fields(self, file: SourceFile) -> tuple[Mapping[str, int], int]:
        """Return the fields of records that are not read, with the number of first records that have them, and of all.

        The number is 0 if all records of the file have the same fields.
        """
        used, records = {*self.fields.names, *(name.partition(".")[0] for name in self.fields.names)}, 0
        if file.format in ("json", "jsonl"):
            with self.access.opened(file.stored, is_random=True) as stored:
                first = first_records(self._text(file, stored), file.format, _FIRST_RECORDS)
            counts, records = Counter(chain.from_iterable(first)), len(first)
        elif file.format in ("csv", "tsv"):
            header = self.header(file)
            counts = Counter(() if header is None else header[0])
        else:
            counts = Counter(self._schema(file).names)
        return {name: count for name, count in counts.items() if name not in used}, records

    def line_of(self, file: SourceFile, position: int) -> int | None:
        """Return the number of the line that begins at byte ``position``, or None where counting takes too long."""
        if not file.stored.is_local or file.format in _TABLES:
            return None
        try:
            with self.access.opened(file.stored, is_random=False) as stored:
                stream, line, until = self._text(file, stored), 1, monotonic() + _SECONDS_TO_COUNT
                for start in range(0, position, _COUNTED_AT_ONCE):
                    if monotonic() >= until:
                        return None
                    line += stream.read(min(_COUNTED_AT_ONCE, position - start)).count(b"\n")
                return line
        except (OSError, CorruptDataError, DataError, StateError):
            return None

    def _documents(
        self,
        file: SourceFile,
        stored: io.BufferedReader[Any],
        part: Part,
        model_of: ModelOf,
    ) -> Iterator[Document | Rejected]:
        fields, most = self.fields, self.limits.record_bytes
        stream = stored if file.format in _TABLES else self._text(file, stored, part)
        match file.format:
            case "txt":
                return self._plain(file, stream, part)
            case "jsonl":
                return read_jsonl(stream, part, fields, most)
            case "json":
                return read_json_array(stream, part, fields, most)
            case "csv" | "tsv":
                return read_delimited(stream, part, fields, self._dialect(file), most, model_of(file))
            case "parquet" | "arrow":
                return _read_table(file.format, stream, part, fields, most)

    def _plain(self, file: SourceFile, stream: io.BufferedReader[Any], part: Part) -> Iterator[Document | Rejected]:
        if self.reading.separator is not None:
            return read_separated_txt(stream, part, self.reading.separator.encode(), self.limits.record_bytes)
        if self._is_document(file):
            return read_whole_txt(stream, part)
        return read_txt(stream, part, self.limits.document_bytes)

    def _explained(self, file: SourceFile, part: Part, found: Document | Rejected) -> Document | Rejected:
        """Return ``found``; a rejection names the encoding that was asked for, as readers know UTF-8 alone.

        One that ends a part of a Parquet file has the number of records that are lost, if the file tells it.
        """
        if isinstance(found, Rejected) and found.end is None and file.format == "parquet":
            return replace(found, num_lost=self._num_rows(file, replace(part, start=found.start)))
        if self.reading.encoding == "auto" or isinstance(found, Document):
            return found
        return replace(found, reason=found.reason.replace("is not UTF-8", f"is not {self.reading.encoding}", 1))

    def _text(
        self, file: SourceFile, stored: io.BufferedReader[Any], part: Part | None = None
    ) -> io.BufferedReader[Any]:
        """Return the text of ``file``, which is open at its start to read ``part`` (None: its beginning), in UTF-8."""
        stream = unpacked(stored, file.compression)
        if part is not None and part.stop is not None:  # only UTF-8 is read in parts
            return stream
        is_entered = part is not None and part.start > 0  # perhaps what follows there is fetched already
        return as_utf8(stream, self._encoding(file) if is_entered else self._encoding_from(stream))

    def _encoding(self, file: SourceFile) -> str:
        key = (file.name, file.stored.unit.etag)
        if key not in self._encodings:
            with self.access.opened(file.stored, is_random=True) as stored:
                self._encodings[key] = self._encoding_from(unpacked(stored, file.compression))
        return self._encodings[key]

    def _encoding_from(self, stream: io.BufferedReader[Any]) -> str:
        """Return the encoding of the text of ``stream``, which is at its start."""
        if self.reading.rules == FIRST_RULES:
            return "utf-8"
        return encoding_of(stream.peek(_MARK_BYTES)) if self.reading.encoding == "auto" else self.reading.encoding

    def _dialect(self, file: SourceFile) -> Dialect:
        delimiter = self.reading.delimiter
        is_certain = delimiter != "auto" or self.fields.is_former
        usual = USUAL_DELIMITERS[file.format]
        return Dialect(usual if delimiter == "auto" else delimiter, is_certain, self.reading.quote)

    def _is_document(self, file: SourceFile) -> bool:
        """Return whether ``file`` is a text in a folder that is small enough to be one document."""
        most = self.reading.document_bytes
        if file.format != "txt" or self.reading.rules == FIRST_RULES or not file.stored.below:
            return False
        if self.reading.separator is not None:
            return False
        if file.compression == "none":
            return file.stored.unit.size <= most
        with self.access.opened(file.stored, is_random=True) as packed, suppress(CorruptDataError):
            stream, size = unpacked(packed, file.compression), 0
            while size <= most and (piece := stream.read(_COUNTED_AT_ONCE)):
                size += len(piece)
            return size <= most
        return False

    def _num_rows(self, file: SourceFile, part: Part) -> int | None:
        """Return the number of rows in ``part`` of a Parquet file by its footer, None if that cannot be read."""
        from holdfast.adapters.data_source.formats.columnar import num_rows

        with suppress(Exception), self.access.opened(file.stored, is_random=True) as stream:
            return max(int(min(num_rows(stream), part.limit)) - part.start, 0)
        return None

    def _schema(self, file: SourceFile) -> Any:
        from holdfast.adapters.data_source.formats.columnar import arrow_schema, parquet_schema

        with self.access.opened(file.stored, is_random=True) as stream:
            return (parquet_schema if file.format == "parquet" else arrow_schema)(stream)

    def _split_table(self, file: SourceFile) -> list[tuple[int, int]]:
        from holdfast.adapters.data_source.formats.columnar import split_arrow, split_parquet

        size, step = file.stored.unit.size, self.limits.unit_bytes
        try:
            with self.access.opened(file.stored, is_random=True) as stream:
                split = split_parquet if file.format == "parquet" else split_arrow
                parts = split(stream, size, step)
        except (DataError, StateError):
            raise
        except Exception as error:
            if _is_of_the_place(error):
                raise DataError(_sentence(error, file, 0)) from error
            parts = []
        return parts or [(0, size)]


def _read_table(
    form: str, stream: io.BufferedReader[Any], part: Part, fields: Fields, record_bytes: int
) -> Iterator[Document | Rejected]:
    if form == "parquet":
        from holdfast.adapters.data_source.formats.columnar import read_parquet

        return read_parquet(stream, part, fields, record_bytes)
    from holdfast.adapters.data_source.formats.columnar import read_arrow

    return read_arrow(stream, part, fields, record_bytes)


def _sentence(error: Exception, file: SourceFile, position: int) -> str:
    if isinstance(error, DataError):
        return str(error)
    place, remedy = f"{file.name}, from position {position} on", "fetch it again or leave it out"
    if isinstance(error, CorruptDataError):
        return f"{place}: {error}: {remedy}"
    if file.format in _TABLES and not _is_of_the_place(error):
        return f"{place}: it is a truncated or damaged {file.format} file ({describe(error)}): {remedy}"
    return f"{file.name} cannot be read ({describe(error)}): check that it exists and that you may read it"


def _is_damage(error: Exception, file: SourceFile) -> bool:
    if isinstance(error, DataError):
        return error.__cause__ is None or isinstance(error.__cause__, ValueError)
    return isinstance(error, (CorruptDataError, ValueError)) or (file.format in _TABLES and not _is_of_the_place(error))


def _is_of_the_place(error: Exception) -> bool:
    """Return whether ``error`` comes from the file system: pyarrow also raises ``OSError`` for damaged bytes."""
    return isinstance(error, OSError) and error.errno is not None
