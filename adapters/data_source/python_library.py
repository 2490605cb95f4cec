"""A data source of the Python standard library's source code: text that every machine has."""

from __future__ import annotations

import os
import sysconfig
from dataclasses import astuple, replace
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.data_source.files import FilesDataSource
from holdfast.adapters.data_source.formats.records import Limits, Reading, fingerprint_of
from holdfast.domain.data.data_files import FIRST_RULES
from holdfast.domain.errors import DataError
from holdfast.ports.basic import BasicDataSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.domain.data.data_files import DataFiles
    from holdfast.ports.data_source import Document, Rejected, Unit

_NOT_THE_LIBRARY = ("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__")


@final
class PythonLibraryDataSource(BasicDataSource):
    """Serves the source files of the running Python's standard library, its tests left out; a unit is a file.

    Names are relative to ``root``, the folder of the library. A file that is not UTF-8 (Python allows other encodings)
    has no documents here, so it never stops a first run; bytes read for this check are not counted.
    """

    def __init__(self, root: str | None = None) -> None:
        self._root = root if root is not None else sysconfig.get_paths()["stdlib"]
        files = FilesDataSource([f"{escape(self._root)}/**/*.py"], exclude=_NOT_THE_LIBRARY)
        self._source = files.with_reading(Reading(FIRST_RULES))

    @override
    def units(self) -> Sequence[Unit]:
        return [replace(file, name=name) for name, file in self._files.items()]

    @override
    def read(self, unit: Unit, start: int | None = None) -> Iterator[Document | Rejected]:
        file = self._files.get(unit.name)
        if file is None:
            msg = f"{unit.name} is not a file of the Python library in {self._root}"
            raise DataError(msg)
        if _is_utf8(file.name):
            yield from self._source.read(file, start)

    @override
    def fingerprint(self) -> str:
        return fingerprint_of(astuple(Limits()), [[name, file.etag] for name, file in self._files.items()])

    @override
    def files(self) -> DataFiles:
        return self._source.files()

    @override
    def identify(self, known: DataFiles | None = None) -> DataFiles:
        return self._source.identify(known)

    @property
    @override
    def bytes_read(self) -> int:
        return self._source.bytes_read

    @property
    @override
    def read_retries(self) -> int:
        return self._source.read_retries

    @cached_property
    def _files(self) -> Mapping[str, Unit]:
        try:
            files = self._source.units()
        except DataError as error:
            msg = (
                f"this Python has no source files of its library in {self._root}: set data.kind=files and data.path to "
                "text of your own"
            )
            raise DataError(msg) from error
        return {os.path.relpath(file.name, self._root).replace(os.sep, "/"): file for file in files}


def _is_utf8(path: str) -> bool:
    try:
        Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True
