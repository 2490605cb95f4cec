"""Rows of a dataset of the ``datasets`` library: read at random from a saved dataset, else shard by shard."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import pyarrow as pa
from datasets import Dataset, IterableDataset, ReadInstruction, load_dataset_builder, load_from_disk
from typing_extensions import override

from holdfast.adapters.data_source.file_access import FileAccess
from holdfast.adapters.data_source.formats.columnar import documents, problem_with, reads_json
from holdfast.adapters.data_source.formats.records import Fields, fingerprint_of
from holdfast.adapters.data_source.listing import list_files
from holdfast.adapters.data_source.verified_stream import blocks_of
from holdfast.ports.data_source import Document, Rejected, Unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.adapters.data_source.remote_file import ListedFile
    from holdfast.adapters.data_source.verified_stream import ContentHashes

_BATCH_BYTES = 4 << 20
_MOST_ROWS = 256
_NAME = re.compile(r"[\w.]+")


class DatasetRows(ABC):
    """A split of a dataset in units of rows.

    ``stored`` are the files that contain only the split, in the order of its rows; empty if they are unknown. ``part``
    is the part of the split that is read, such as ``train[:50%]``, None for all of it.
    """

    stored: Sequence[ListedFile] = ()
    part: str | None = None

    @abstractmethod
    def schema(self) -> pa.Schema:
        """Return the columns."""

    @abstractmethod
    def units(self, name: str, unit_bytes: int) -> Sequence[Unit]:
        """Return the units, sorted; ``name`` is the split's."""

    @abstractmethod
    def batches(self, unit: Unit, start: int, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of ``unit`` from ``start`` on, each table with the position of its first row."""

    def reads_json(self, fields: Fields) -> bool:
        """Return whether a column of ``fields`` holds JSON; raises the errors of ``datasets``."""
        return reads_json(self.schema(), fields)

    def read(self, unit: Unit, start: int, fields: Fields, record_bytes: int) -> Iterator[Document | Rejected]:
        """Yield the documents of ``unit`` from ``start`` on."""
        names = [*fields.names, *(name.partition(".")[0] for name in fields.names)]
        for position, table in self.batches(unit, start, names):
            if problem := problem_with(table.schema, fields, unit.name):
                yield Rejected(problem, position, None)
                return
            yield from documents(table, position, unit.name, fields, record_bytes)


def open_rows(path: str, name: str | None, split: str, revision: str | None, contents: ContentHashes) -> DatasetRows:
    """Return the split, or a part of one, such as ``train[:50%]``, of a dataset that was saved by the library.

    ``contents`` receives the hashes of the blocks read. Raises the errors of ``datasets``.
    """
    folder, part = Path(path), None
    if (folder / "dataset_dict.json").is_file():
        splits = json.loads((folder / "dataset_dict.json").read_text(encoding="utf-8"))["splits"]
        if split not in splits:
            split, part = _base_of(split), split
        if split not in splits:
            msg = f"the folder holds the splits {', '.join(map(repr, splits))}"
            raise ValueError(msg)
        return _SavedRows(load_from_disk(str(folder / split)), folder / split, part, contents)
    if (folder / "state.json").is_file():
        dataset = load_from_disk(str(folder))
        known = None if dataset.split is None else str(dataset.split)
        if known not in (None, split):
            part = split
            if _base_of(split) != known:
                msg = f"the folder holds the split {known!r}"
                raise ValueError(msg)
        return _SavedRows(dataset, folder, part, contents)
    if not _NAME.fullmatch(split):
        msg = "parts and sums of splits are read only of a dataset that save_to_disk wrote: name one split"
        raise ValueError(msg)
    builder = load_dataset_builder(path, name, revision=revision)
    return _StreamedRows(builder, split)


def _base_of(split: str) -> str:
    """Return the name of the split of which ``split`` is a part; raises ``ValueError`` for a sum of several."""
    if "+" in split:
        msg = "sums of splits are not read: name one split, or a part of one such as train[:50%]"
        raise ValueError(msg)
    return split.partition("[")[0].strip()


@final
class _SavedRows(DatasetRows):
    def __init__(self, dataset: Dataset, folder: Path, part: str | None, contents: ContentHashes) -> None:
        self._dataset: Dataset = dataset.with_format("arrow")
        self.part = part
        self._first, self._stop = 0, len(dataset)
        if part is not None:  # the library's own rules of counting and rounding
            (rows,) = ReadInstruction.from_spec(part).to_absolute({_base_of(part): len(dataset)})
            self._first, self._stop = int(rows.from_), int(rows.to)
        files = sorted(Path(entry["filename"]) for entry in dataset.cache_files)
        status = [(file.name, file.stat()) for file in files]
        self._size = sum(stat.st_size for _, stat in status)
        state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        stamps = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in status]
        self._etag = fingerprint_of(state.get("_fingerprint"), stamps)
        self.stored = [_stored(entry["filename"]) for entry in dataset.cache_files]
        self._blocks = blocks_of(self.stored)
        self._contents = contents

    @override
    def schema(self) -> pa.Schema:
        return self._dataset.features.arrow_schema

    @override
    def units(self, name: str, unit_bytes: int) -> Sequence[Unit]:
        num_rows = len(self._dataset)
        step = max(num_rows * unit_bytes // max(self._size, 1), 1)
        starts = range(self._first, max(self._stop, self._first + 1), step)
        digits = len(str(starts[-1]))
        last = None if self._stop == num_rows else self._stop
        size = self._size // len(starts)
        if self.part is not None:
            size = size * (self._stop - self._first) // max(num_rows, 1)
        return [
            Unit(
                f"{name}@{start:0{digits}}" if start else name,
                size,
                self._etag,
                start,
                start + step if start + step < self._stop else last,
            )
            for start in starts
        ]

    @override
    def batches(self, unit: Unit, start: int, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        num_rows = len(self._dataset)
        rows = min(max(_BATCH_BYTES * num_rows // max(self._size, 1), 1), _MOST_ROWS)
        stop = self._stop if unit.stop is None else unit.stop
        columns = [name for name in dict.fromkeys(names) if name in self._dataset.column_names]
        table = self._dataset.select_columns(columns) if columns else self._dataset
        for position in range(start, stop, rows):
            yield position, table[position : min(position + rows, stop)]
        # a memory map does not report the bytes read, so each unit hashes its share of the blocks, which are cached now
        first = len(self._blocks) * unit.start // max(num_rows, 1)
        end = len(self._blocks) if stop == num_rows else len(self._blocks) * stop // num_rows
        for file, number in self._blocks[first:end]:
            self._contents.read_block(file, number)


@final
class _StreamedRows(DatasetRows):
    def __init__(self, builder: Any, split: str) -> None:
        self._dataset: IterableDataset = builder.as_streaming_dataset(split=split).with_format("arrow")
        files = (builder.config.data_files or {}).get(split)
        origin = [list(map(str, entry)) for entry in getattr(files, "origin_metadata", None) or ()]
        self._etag = fingerprint_of(builder.hash, builder.config_id, list(map(str, files or ())), origin)
        self._size = _size_of(builder, split, files or ())

    @override
    def schema(self) -> pa.Schema:
        if (features := self._dataset.features) is not None:
            return features.arrow_schema
        first = next(iter(self._dataset.iter(batch_size=1)), None)
        return pa.schema([]) if first is None else first.schema

    @override
    def units(self, name: str, unit_bytes: int) -> Sequence[Unit]:
        count = self._dataset.num_shards
        return [Unit(f"{name}@{index:05}", self._size // count, self._etag) for index in range(count)]

    @override
    def batches(self, unit: Unit, start: int, names: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        shard = self._dataset.shard(self._dataset.num_shards, int(unit.name.rpartition("@")[2]))
        position = 0
        for table in shard.iter(batch_size=_MOST_ROWS):
            if (skipped := max(start - position, 0)) < table.num_rows:
                yield position + skipped, table.slice(skipped)
            position += table.num_rows


def _stored(path: str) -> ListedFile:
    (file,) = list_files(path, (), FileAccess())
    return replace(file, place=str(Path(file.path).parent))


def _size_of(builder: Any, split: str, files: Sequence[str]) -> int:
    splits = builder.info.splits or {}
    if split in splits and splits[split].num_bytes:
        return int(splits[split].num_bytes)
    return sum(Path(file).stat().st_size for file in files if Path(file).is_file())
