"""Text and JSON Lines files, on a disk or wherever fsspec reaches."""

from __future__ import annotations

import gzip
import io
import zlib
from contextlib import contextmanager
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, final

from fsspec.implementations.memory import MemoryFileSystem
from typing_extensions import override

from adapters.data_source.formats import DOCUMENT_BYTES, LINE_BYTES, fingerprint_of, read_jsonl, read_txt
from adapters.data_source.listing import StoredFile, describe, list_files, without_secrets
from domain.errors import DataError
from ports.data_source import DataSource, Document, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Format = Literal["auto", "txt", "jsonl"]

_BUFFER_BYTES = 1 << 18
_PLAIN_TEXT = (
    *("txt", "text", "md", "markdown", "rst", "adoc", "org", "tex", "log"),
    *("py", "pyi", "ipy", "js", "mjs", "ts", "jsx", "tsx", "java", "kt", "scala", "go", "rs", "rb", "php", "pl"),
    *("c", "h", "cc", "cpp", "cxx", "hh", "hpp", "cu", "cuh", "cs", "swift", "m", "mm", "r", "jl", "lua", "hs", "ml"),
    *("sh", "bash", "zsh", "ps1", "sql", "html", "htm", "css", "scss", "xml", "yaml", "yml", "toml", "ini", "cfg"),
)
_FORMATS: Mapping[str, Literal["txt", "jsonl"]] = {
    **{f".{suffix}": "txt" for suffix in _PLAIN_TEXT},
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}


@final
class FilesDataSource(DataSource):
    """Reads files of plain text or JSON Lines, as they are or gzipped; a position is a byte offset of the plain text.

    ``paths`` are files, folders (all files below them) or globs, local or URLs of any scheme that fsspec knows.
    ``auto`` goes by the suffix: a folder gives its files with a known one, and a file that is named, or that a glob
    matches, must have one; any other ``format`` is taken for all files. ``.gz`` is unpacked in any format.
    Plain text is cut into documents of at most ``document_bytes`` (4 or more), behind a line where there is one; in
    JSON Lines a document is the field ``text_field`` of a line, which has at most ``line_bytes``.
    ``exclude`` leaves out names (``drafts``, ``*.log``) or, with a slash, paths below one of ``paths``; what is hidden
    (``.git``) is left out too.
    """

    def __init__(
        self,
        paths: Sequence[str],
        *,
        format: Format = "auto",  # noqa: A002 - the configuration's word
        text_field: str = "text",
        exclude: Sequence[str] = (),
        document_bytes: int = DOCUMENT_BYTES,
        line_bytes: int = LINE_BYTES,
    ) -> None:
        self._paths = paths
        self._format = format
        self._text_field = text_field
        self._exclude = exclude
        self._document_bytes = document_bytes
        self._line_bytes = line_bytes

    @override
    def units(self) -> Sequence[Unit]:
        return [file.unit for file in self._files.values()]

    @override
    def read(self, unit: Unit, start: int = 0) -> Iterator[Document]:
        file = self._files.get(unit.name)
        if file is None:
            msg = f"{unit.name} is not among the files of this data source"
            raise DataError(msg)
        with _opened(file, start) as stream:
            if self._format_of(file) == "txt":
                yield from read_txt(stream, unit.name, start, self._document_bytes)
            else:
                yield from read_jsonl(stream, unit.name, start, self._text_field, self._line_bytes)

    @override
    def fingerprint(self) -> str:
        units = [[file.unit.name, file.unit.etag, self._format_of(file)] for file in self._files.values()]
        return fingerprint_of(self._document_bytes, self._text_field, units)

    @cached_property
    def _files(self) -> Mapping[str, StoredFile]:
        found = {file.unit.name: file for path in self._paths for file in self._files_at(path)}
        return dict(sorted(found.items()))

    def _files_at(self, path: str) -> Sequence[StoredFile]:
        files = [file for file in list_files(path, self._exclude) if file.is_chosen or self._format_of(file)]
        if not files:
            kinds = "with a known suffix such as .txt or .jsonl" if self._format == "auto" else "to read"
            msg = f"no file matches {without_secrets(path)}: there is nothing {kinds}; check data.path"
            raise DataError(msg)
        for file in files:
            if self._format_of(file) is None:
                msg = f"the suffix of {file.unit.name} does not tell its format: set data.format to txt or jsonl"
                raise DataError(msg)
        return files

    def _format_of(self, file: StoredFile) -> Literal["txt", "jsonl"] | None:
        if self._format != "auto":
            return self._format
        return _FORMATS.get(PurePosixPath(file.path.lower().removesuffix(".gz")).suffix)


@contextmanager
def _opened(file: StoredFile, start: int) -> Iterator[io.BufferedReader[Any]]:
    name = file.unit.name
    try:
        if isinstance(file.file_system, MemoryFileSystem):
            # all who open a file in memory share one handle, and its place
            raw: Any = io.BytesIO(file.file_system.cat_file(file.path))
        else:
            raw = file.file_system.open(file.path, "rb")
        plain = gzip.GzipFile(fileobj=raw) if file.path.lower().endswith(".gz") else raw
        with raw, plain, io.BufferedReader(plain, _BUFFER_BYTES) as stream:
            stream.seek(start)
            yield stream
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        msg = f"{name} is a truncated or damaged gzip file ({describe(error)}): fetch it again or leave it out"
        raise DataError(msg) from error
    except DataError:
        raise
    except Exception as error:  # each file system has its own errors
        msg = f"{name} cannot be read ({describe(error)}): check that it is there and that you may read it"
        raise DataError(msg) from error
