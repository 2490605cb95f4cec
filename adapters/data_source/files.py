"""A data source of text and record files, on a disk or at any URL that fsspec supports."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from dataclasses import astuple, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from typing_extensions import override

from holdfast.adapters.data_source.file_access import FileAccess
from holdfast.adapters.data_source.file_reader import FileReader, SourceFile
from holdfast.adapters.data_source.formats.compression import (
    compression_of,
    format_of,
    is_known_of_old,
    problem_with_suffix,
)
from holdfast.adapters.data_source.formats.records import Fields, Limits, Part, Reading, fingerprint_of, shown
from holdfast.adapters.data_source.listing import FolderChoice, list_files, shown_names
from holdfast.adapters.data_source.verified_stream import stamp_of
from holdfast.domain.data.data_files import FIRST_RULES, DataFile, DataFiles
from holdfast.domain.errors import DataError
from holdfast.domain.sizes import counted
from holdfast.domain.urls import without_secrets
from holdfast.ports.data_source import DataSource, Document, Rejected, Remark, Unit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Sequence

    from holdfast.adapters.data_source.formats.compression import Compression, Format
    from holdfast.adapters.data_source.formats.delimited import Model
    from holdfast.adapters.data_source.formats.records import Task, Value
    from holdfast.adapters.data_source.remote_file import ListedFile

_THREADS = 16
_DERIVED = ("_units", "_files", "_forms", "_first", "_own_places")  # what is found once
_END = re.compile(rb"<\|end_?of_?text\|>|<eos>|^</s>(?=\r?$)", re.MULTILINE)  # usual tokens, </s> alone in its line
_PLACE = re.compile(r"(line|row) at byte \d+")  # the position of a record as the readers of lines and rows write it


@final
class FilesDataSource(DataSource):
    """Reads plain text, JSON, CSV, Parquet and Arrow files, the first three packed by gzip, zstd, bzip2 or xz too.

    ``paths`` are files, folders (all files below them) or globs, local or URLs of any scheme that fsspec knows.
    ``auto`` chooses by the suffix: in a folder only files with a known suffix are read, as ``FolderChoice`` has it, and
    a file that is named or matched by a glob must have a known suffix. Any other ``format`` or ``compression`` applies
    to all files.
    ``exclude`` leaves out names (``drafts``, ``*.log``) or, with a slash, paths below one of ``paths``; hidden files
    and folders (``.git``) are left out too. A record's document is its field ``text_field``; records are left out
    unless their fields have values that ``filter`` allows (one or several for each name). Files of txt and jsonl that
    are not packed are read in byte ranges, Parquet in row groups, Arrow in record batches, grouped to about
    ``limits.unit_bytes``; all others whole. A position is a byte offset of the unpacked text, in Parquet the number of
    the row, in Arrow 2^32 times the number of the batch plus the row in it. ``access`` limits how long a remote server
    may fail, and counts the bytes read. Files are sorted by name; if ``paths`` is a mapping, its values are the places
    of the paths when that order was chosen.
    """

    def __init__(
        self,
        paths: Sequence[str] | Mapping[str, str],
        *,
        exclude: Sequence[str] = (),
        format: Format | Literal["auto"] = "auto",  # noqa: A002 - the configuration's word
        compression: Compression | Literal["auto"] = "auto",
        text_field: str = "text",
        filter: Mapping[str, Value | Sequence[Value]] | None = None,  # noqa: A002 - the configuration's word
        limits: Limits | None = None,
        access: FileAccess | None = None,
    ) -> None:
        self._paths = list(paths)
        self._places = list(paths.values()) if isinstance(paths, Mapping) else ()
        self._exclude = exclude
        self._part_of: tuple[FilesDataSource, Collection[str]] | None = None
        self._format = format
        self._compression = compression
        self._limits = limits or Limits()
        self._access = access or FileAccess()
        self._columns: dict[str, list[str] | None] = {}
        self._folders: dict[str, FolderChoice] = {}
        self._reading = FileReader(Fields.choose(text_field, filter), self._limits, self._access)

    def with_fields(self, names: Sequence[str]) -> FilesDataSource:
        """Return a source of the same documents that carry the fields of ``names``."""
        other = copy(self)
        other.__dict__.pop("_forms", None)
        fields = self._reading.fields.keeping(names)
        other._reading = replace(self._reading, fields=fields)  # noqa: SLF001  of its own kind
        return other

    def with_reading(self, reading: Reading) -> FilesDataSource:
        """Return a source of the same paths, whose files are chosen and read by ``reading``."""
        other = copy(self)
        for derived in _DERIVED:
            other.__dict__.pop(derived, None)
        fields = replace(self._reading.fields, is_former=reading.rules == FIRST_RULES)
        read = replace(self._reading, reading=reading, fields=fields)
        other.__dict__ |= {"_reading": read, "_folders": {}, "_columns": {}}
        return other

    def with_task(self, task: Task) -> FilesDataSource:
        """Return a source of the same records, whose documents are what ``task`` makes of several of their fields."""
        other = copy(self)
        other.__dict__.pop("_forms", None)
        fields = replace(self._reading.fields, task=task)
        other._reading = replace(self._reading, fields=fields)  # noqa: SLF001  of its own kind
        return other

    @override
    def units(self) -> Sequence[Unit]:
        return [unit for unit, _ in self._units.values()]

    @override
    def read(self, unit: Unit, start: int | None = None) -> Iterator[Document | Rejected]:
        if unit.name not in self._units:
            msg = f"{unit.name} is not among the files of this data source"
            raise DataError(msg)
        file, part = self._part(unit, start)
        yield from self._reading.read(file, part, self._columns_to_match)

    @override
    def confirming(self) -> FilesDataSource:
        self.units()  # are listed once for both
        other = copy(self)
        access = replace(self._access, confirms_remote=True)
        other._access, other._reading = access, replace(self._reading, access=access)  # noqa: SLF001  of its own kind
        return other

    @override
    def expect(self, unit: Unit, start: int | None = None) -> None:
        self._reading.expect(*self._part(unit, start))

    @override
    def tell(self, unit: Unit, rejected: Rejected) -> str:
        line = self._reading.line_of(self._units[unit.name][1], rejected.start)
        if line is None:
            return rejected.reason
        return _PLACE.sub(rf"line {line} at byte {rejected.start}", rejected.reason, count=1)

    @property
    @override
    def fetches_ahead(self) -> bool:
        return all(self._reading.is_expected(file) for _, file in self._units.values())

    @override
    def release(self) -> None:
        self._reading.access.release()

    def _part(self, unit: Unit, start: int | None) -> tuple[SourceFile, Part]:
        known, file = self._units[unit.name]
        return file, Part(file.name, max(known.start, start or 0), known.stop)

    @override
    def fingerprint(self) -> str:
        forms = {file.name: form for file, form in zip(self._files, self._forms, strict=True)}
        units = [
            [unit.name, unit.etag, forms[file.name].partition(".")[0], file.compression]
            for unit, file in self._units.values()
        ]
        return fingerprint_of(astuple(self._limits), self._reading.fields.to_json(), units, *self._further)

    @override
    def files(self) -> DataFiles:
        reading = fingerprint_of(astuple(self._limits), self._reading.fields.to_json(), *self._further)
        first = self._places or self._own_places
        return DataFiles(reading, {"": self._own_places}, {"": first}, [*map(self._told, self._files, self._forms)])

    @override
    def identify(self, known: DataFiles | None = None) -> DataFiles:
        self._access.contents.find(
            list(zip(self.files().files, [file.stored for file in self._files], strict=True)), known
        )
        return self.files()

    @override
    def only(self, names: Collection[str]) -> FilesDataSource:
        part = copy(self)
        for derived in _DERIVED:
            part.__dict__.pop(derived, None)
        part.__dict__ |= {"_part_of": (self, names), "_columns": {}}
        return part

    @override
    def remarks(self) -> Sequence[Remark]:
        if self._part_of is not None:
            return self._part_of[0].remarks()
        assert self._files is not None  # folders are known once their files are listed
        remarks = [each for folder in self._folders.values() for each in folder.remarks()]
        remarks += [*remark_copies(self._files, self._reading), *self._remark_large(), *self._remark_separator()]
        return [*remarks, *self._remark_delimiters(), *self._remark_fields()]

    def _remark_large(self) -> Iterator[Remark]:
        most = self._reading.reading.document_bytes
        texts = [file for file in self._files if file.format == "txt" and file.stored.below]
        large = [file.name for file in texts if file.stored.unit.size > most]
        if large and self._reading.reading.rules > FIRST_RULES and self._reading.reading.separator is None:
            yield Remark(
                f"{counted(len(large), 'text file')} of more than {most:,} bytes (data.document_bytes) "
                f"{'is' if len(large) == 1 else 'are'} cut into documents of about 64 KiB: {shown_names(large)}"
            )

    def _remark_separator(self) -> Iterator[Remark]:
        """Yield what the beginning of the first text file tells about the ends of documents in it."""
        separator = self._reading.reading.separator
        file = next((file for file in self._files if file.format == "txt" and file.stored.unit.size), None)
        if file is None:
            if separator is not None:
                yield Remark("data.document_separator is not used, as no file is plain text", 1)
            return
        with suppress(Exception):  # reading it for training tells what is wrong with it
            begin = self._reading.begin(file)
            if separator is not None and separator.encode() not in begin:
                yield Remark(f"the first {len(begin):,} bytes of {file.name} hold no {separator!r}")
            if separator is None and (end := _END.search(begin)):
                token = end[0].decode()
                yield Remark(
                    f"{file.name} holds {token!r}, which is read as ordinary text and ends no document: set "
                    f"data.document_separator={token!r} to split text files there"
                )

    def _remark_fields(self) -> Iterator[Remark]:
        """Yield which fields of plain records are not read; other tasks judge the fields of each record."""
        file = next((file for file in self._files if file.format != "txt" and file.stored.unit.size), None)
        if file is None or self._reading.fields.task != "text":
            return
        with suppress(Exception):  # reading it for training tells what is wrong with it
            others, number = self._reading.other_fields(file)
            rare = [f"{name!r} ({count})" if count < number else repr(name) for name, count in others.items()]
            if rare:
                of = f" (of the first {counted(number, 'record')})" if number else ""
                yield Remark(f"fields of the records in {file.name} that are not used{of}: {shown_names(rare)}")

    def _remark_delimiters(self) -> Iterator[Remark]:
        for file in self._first.values():
            header = self._reading.header(file)
            if header is not None and not header[1].is_usual(file.format):
                columns, dialect = header
                yield Remark(f"the columns of {file.name} are divided by {dialect.delimiter!r}: {shown(columns)}")

    @property
    @override
    def bytes_read(self) -> int:
        return self._access.counter.bytes_read

    @property
    @override
    def read_retries(self) -> int:
        return self._access.counter.read_retries

    def _told(self, file: SourceFile, form: str) -> DataFile:
        stored = file.stored
        stamp = stamp_of(file.name, stored.unit.etag)
        return DataFile(self._name(file), stored.unit.size, form, stamp, self._access.contents.of(stored))

    def _name(self, file: SourceFile) -> str:
        below = file.stored.below
        return below.lstrip("/") if len(self._paths) == 1 else f"data.path[{self._paths.index(file.path)}]{below}"

    @property
    def _further(self) -> Sequence[object]:
        """Return what of the reading matters for the files, in a fingerprint."""
        kinds = {"table" for file in self._files if file.format in ("csv", "tsv")}
        kinds |= {"text" for file in self._files if file.format not in ("parquet", "arrow")}
        kinds |= {"plain" for file in self._files if file.format == "txt"}
        kinds |= {"folder" for file in self._files if file.format == "txt" and file.stored.below}
        return self._reading.reading.to_json(kinds)

    @cached_property
    def _forms(self) -> Sequence[str]:
        with ThreadPoolExecutor(_THREADS) as pool:
            return list(pool.map(self._reading.form, self._files))

    @cached_property
    def _own_places(self) -> Sequence[str]:
        places = {file.path: file.stored.place for file in self._files}
        return [places.get(path, path) for path in self._paths]

    def _rank(self, name: str, file: SourceFile) -> str:
        if not self._places:
            return name
        return f"{self._places[self._paths.index(file.path)]}{name.removeprefix(file.stored.place)}"

    @cached_property
    def _units(self) -> Mapping[str, tuple[Unit, SourceFile]]:
        with ThreadPoolExecutor(_THREADS) as pool:
            units = list(chain.from_iterable(pool.map(self._split, self._files)))
        found = {
            unit.name: (unit, file) for unit, file in sorted(units, key=lambda each: self._rank(each[0].name, each[1]))
        }
        if len(found) < len(units):
            msg = "two files have the same name, but for the @ and number that mark a part of one: rename one of them"
            raise DataError(msg)
        return found

    def _columns_to_match(self, file: SourceFile) -> Model | None:
        """All files of a path have the columns of the first one."""
        first = self._first.get((file.path, file.format), file)
        if first.name == file.name:
            return None
        if first.name not in self._columns:
            header = self._reading.header(first)
            self._columns[first.name] = None if header is None else header[0]
        columns = self._columns[first.name]
        return None if columns is None else (first.name, columns)

    def _split(self, file: SourceFile) -> list[tuple[Unit, SourceFile]]:
        whole = file.stored.unit
        shares = self._reading.split(file)
        stops = [start for start, _ in shares[1:]]
        digits = len(str(shares[-1][0]))
        return [
            (Unit(f"{whole.name}@{start:0{digits}}" if start else whole.name, size, whole.etag, start, stop), file)
            for (start, size), stop in zip(shares, [*stops, None], strict=True)
        ]

    @cached_property
    def _first(self) -> Mapping[tuple[str, Format], SourceFile]:
        return {(file.path, file.format): file for file in reversed(self._files) if file.format in ("csv", "tsv")}

    @cached_property
    def _files(self) -> Sequence[SourceFile]:
        if self._part_of is not None:
            whole, names = self._part_of
            return [file for file in whole._files if self._name(file) in names]  # noqa: SLF001  of its own kind
        by_name = {file.name: file for path in reversed(self._paths) for file in self._files_at(path)}
        return sorted(by_name.values(), key=lambda file: self._rank(file.name, file))

    def _files_at(self, path: str) -> Sequence[SourceFile]:
        listed = list(list_files(path, self._exclude, self._access))
        folder = self._folders[path] = FolderChoice(path)
        files = [each for file in listed if (each := self._file_of(file, path, folder)) is not None]
        is_folder = (
            self._reading.reading.rules > FIRST_RULES
            and self._format == "auto"
            and not any(file.is_chosen for file in listed)
        )
        if chosen := folder.choose(files, self._reading) if is_folder else files:
            return chosen
        kinds = "with a known suffix such as .txt or .jsonl" if self._format == "auto" else "to read"
        others = "".join(f"; {each.sentence}" for each in folder.remarks())
        msg = f"no file matches {without_secrets(path)}: there is nothing {kinds}; check data.path{others}"
        raise DataError(msg)

    def _file_of(self, file: ListedFile, path: str, folder: FolderChoice) -> SourceFile | None:
        """Return ``file`` with its format, or None if it is not read, which ``folder`` remembers."""
        form, name = self._format_of(file), file.below.lstrip("/")
        if file.is_dangling:
            folder.dangling.append(name)
            return None
        if form is None and file.is_chosen:
            msg = f"{file.unit.name} {problem_with_suffix(_path_of(file))}"
            raise DataError(msg)
        if form is None:
            folder.unknown.append(name)
            return None
        checked = SourceFile.checked(file, path, form, self._compression_of(file))
        if form != "json":
            return checked
        if (kind := self._reading.form_of_json(checked)) is None and not file.is_chosen:
            folder.objects.append(checked)
            return None
        return replace(checked, format=kind or form)

    def _format_of(self, file: ListedFile) -> Format | None:
        if self._format != "auto":
            return self._format
        is_known = self._reading.reading.rules > FIRST_RULES or file.is_chosen or is_known_of_old(_path_of(file))
        return format_of(_path_of(file)) if is_known else None

    def _compression_of(self, file: ListedFile) -> Compression:
        return compression_of(_path_of(file)) if self._compression == "auto" else self._compression


def _path_of(file: ListedFile) -> str:
    return file.path.partition("?")[0] if file.path.startswith(("http://", "https://")) else file.path


_COMPARED_BYTES = 1 << 12
_MOST_FILES = 2_000  # that are opened to be compared


def remark_copies(files: Sequence[SourceFile], reader: FileReader) -> Iterator[Remark]:
    """Yield which of ``files`` are links to others, seem to be copies of others, or hold others in packed form.

    Only files on this machine are compared. Copies have equal sizes and equal first and last 4 KiB, packed files the
    names of others before the suffix and equal first 4 KiB when they are unpacked; at most 2,000 files are opened for
    either. Of plain text only links are looked for, as short texts repeat.
    """
    local = [file for file in files if file.stored.is_local and file.stored.unit.size]
    links = _repeated(local, _place)
    yield from _told(links, "is another one under a second name, so", "are others under second names, so")
    records = [file for file in local if file.format != "txt" and file not in links]
    sizes = Counter(file.stored.unit.size for file in records)
    equal = [file for file in records if sizes[file.stored.unit.size] > 1]
    copies = _repeated(equal[:_MOST_FILES], lambda file: (file.stored.unit.size, *_ends(file, reader)))
    yield from _told(
        copies,
        "seems to be a copy of another, with its size, beginning and end; if so,",
        "seem to be copies of others, with their sizes, beginnings and ends; if so,",
    )
    names = Counter(_unpacked_name(file) for file in records)
    pairs = [file for file in records if names[_unpacked_name(file)] > 1]
    packed = _repeated(pairs[:_MOST_FILES], lambda file: (_unpacked_name(file), reader.begin(file)[:_COMPARED_BYTES]))
    yield from _told(
        packed,
        "seems to be another one in packed form, as it begins like it; if so,",
        "seem to be others in packed form, as they begin like them; if so,",
    )


def _repeated(files: Sequence[SourceFile], key: Callable[[SourceFile], Hashable]) -> Sequence[SourceFile]:
    """Return all of ``files`` whose ``key`` an earlier one has."""
    keys, found = set(), []
    for file in files:
        with suppress(Exception):  # reading the file for training tells what is wrong with it
            this = key(file)
            if this in keys:
                found.append(file)
            keys.add(this)
    return found


def _told(files: Sequence[SourceFile], one: str, several: str) -> Iterator[Remark]:
    if files:
        names = shown_names([file.stored.below.lstrip("/") or file.name for file in files])
        clause = f"{one} its records are" if len(files) == 1 else f"{several} their records are"
        yield Remark(f"{counted(len(files), 'file')} {clause} read several times: {names}")


def _place(file: SourceFile) -> tuple[int, int]:
    status = Path(file.stored.path).stat()
    return status.st_dev, status.st_ino


def _unpacked_name(file: SourceFile) -> str:
    return file.stored.path if file.compression == "none" else file.stored.path.rpartition(".")[0]


def _ends(file: SourceFile, reader: FileReader) -> tuple[bytes, bytes]:
    with reader.access.opened(file.stored, is_random=True) as stored:
        begin = stored.read(_COMPARED_BYTES)
        stored.seek(max(0, file.stored.unit.size - _COMPARED_BYTES))
        return begin, stored.read(_COMPARED_BYTES)
