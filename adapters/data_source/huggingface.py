"""A data source of datasets from the Hugging Face Hub or saved by its library, read row by row."""

from __future__ import annotations

from copy import copy
from dataclasses import astuple, replace
from functools import cached_property
from typing import TYPE_CHECKING, final

from typing_extensions import override

from holdfast.adapters.data_source.formats.records import Fields, Limits, fingerprint_of
from holdfast.adapters.data_source.verified_stream import ContentHashes, stamp_of
from holdfast.domain.data.data_files import FIRST_RULES, DataFile, DataFiles
from holdfast.domain.errors import ConfigurationError, DataError, StateError
from holdfast.domain.urls import describe
from holdfast.ports.basic import BasicDataSource
from holdfast.ports.data_source import Document, Rejected, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.adapters.data_source.formats.records import Task, Value
    from holdfast.adapters.data_source.hf_rows import DatasetRows
    from holdfast.adapters.data_source.remote_file import ListedFile


@final
class HuggingfaceDataSource(BasicDataSource):
    """Reads one ``split`` of a dataset with the ``datasets`` library, without copying anything to disk.

    ``path`` is a name on the Hub, a folder of data files, or a folder that ``save_to_disk`` wrote, of which ``split``
    may also be a part such as ``train[:50%]``. ``name`` chooses among a dataset's configurations, ``revision`` among
    its versions. A unit is a shard, or in a saved folder rows of about ``limits.unit_bytes``; a position is the number
    of the row, in the shard or in the saved split. Rows are chosen by ``text_field`` and ``filter`` as in files. For
    Parquet shards memory holds a row group, whose size the library does not report. Raises ``ConfigurationError`` if
    the library is missing, ``DataError`` if the dataset does not exist.
    """

    def __init__(
        self,
        path: str,
        *,
        name: str | None = None,
        split: str = "train",
        revision: str | None = None,
        text_field: str = "text",
        filter: Mapping[str, Value | Sequence[Value]] | None = None,  # noqa: A002 - the configuration's word
        limits: Limits | None = None,
    ) -> None:
        self._path = path
        self._name = name
        self._split = split
        self._revision = revision
        self._fields = Fields.choose(text_field, filter)
        self._limits = limits or Limits()
        self._contents = ContentHashes()

    def with_fields(self, names: Sequence[str]) -> HuggingfaceDataSource:
        """Return a source of the same documents that carry the fields of ``names``."""
        other = copy(self)
        other._fields = self._fields.keeping(names)
        return other

    def with_rules(self, rules: int) -> HuggingfaceDataSource:
        """Return a source of the same rows, of which ``rules`` make documents."""
        other = copy(self)
        other._fields = replace(self._fields, is_former=rules == FIRST_RULES)
        return other

    def with_task(self, task: Task) -> HuggingfaceDataSource:
        """Return a source of the same records, whose documents are what ``task`` makes of several of their fields."""
        other = copy(self)
        other._fields = replace(self._fields, task=task)
        return other

    @override
    def units(self) -> Sequence[Unit]:
        return list(self._units.values())

    @override
    def read(self, unit: Unit, start: int | None = None) -> Iterator[Document | Rejected]:
        known = self._units.get(unit.name)
        if known is None:
            msg = f"{unit.name} is not among the shards of the dataset {self._path}"
            raise DataError(msg)
        position = max(known.start, start or 0)
        try:
            for judged in self._rows.read(known, position, self._fields, self._limits.record_bytes):
                yield judged
                position = position if judged.end is None else judged.end
        except StateError:
            raise
        except Exception as error:  # noqa: BLE001 - each file system and format has its own errors
            reason = f"{unit.name}, from row {position} on, cannot be read ({describe(error)}): fetch it again"
            yield Rejected(reason, position, None)

    @override
    def fingerprint(self) -> str:
        units = [[unit.name, unit.etag] for unit in self.units()]
        return fingerprint_of(
            astuple(self._limits), self._fields.to_json(), units, *(["json"] if self._reads_json else [])
        )

    @override
    def files(self) -> DataFiles | None:
        if not (stored := self._rows.stored):
            return None
        part = [] if self._rows.part is None else [self._rows.part]
        reading = fingerprint_of(astuple(self._limits), self._fields.to_json(), *part)
        places = {"": [stored[0].place]}
        return DataFiles(reading, places, places, [self._told(file) for file in stored])

    @override
    def identify(self, known: DataFiles | None = None) -> DataFiles | None:
        if (files := self.files()) is None:
            return None
        self._contents.find(list(zip(files.files, self._rows.stored, strict=True)), known)
        return self.files()

    def _told(self, file: ListedFile) -> DataFile:
        stamp = stamp_of(file.unit.name, file.unit.etag)
        form = "arrow+json" if self._reads_json else "arrow"
        return DataFile(file.below.lstrip("/"), file.unit.size, form, stamp, self._contents.of(file))

    @property
    def _reads_json(self) -> bool:
        return len(self._fields.names) > 1 and not self._fields.is_former and self._rows.reads_json(self._fields)

    @cached_property
    def _units(self) -> Mapping[str, Unit]:
        return {unit.name: unit for unit in self._rows.units(f"{self._path}/{self._split}", self._limits.unit_bytes)}

    @cached_property
    def _rows(self) -> DatasetRows:
        try:
            from holdfast.adapters.data_source.hf_rows import open_rows
        except ImportError as error:
            msg = 'datasets of Hugging Face need another package: pip install "holdfast-lm[datasets]"'
            raise ConfigurationError(msg) from error
        try:
            return open_rows(self._path, self._name, self._split, self._revision, self._contents)
        except Exception as error:
            msg = (
                f"the split {self._split!r} of the dataset {self._path} cannot be opened ({describe(error)}): check "
                "data.path, data.name, data.split and your access to it"
            )
            raise DataError(msg) from error
