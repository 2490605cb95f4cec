"""Parquet and Arrow files with a column of token ids, converted once into arrays that can be mapped."""

from __future__ import annotations

import logging
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, final

import numpy as np
from blake3 import blake3

from holdfast.adapters.shared.token_store.checked_ids import TwiceReadFile
from holdfast.adapters.token_source.shards import (
    DocumentScanner,
    FileShard,
    check_ids,
    fingerprint_of,
    narrowest,
    shard_name,
)
from holdfast.domain.data.data_files import FIRST_RULES
from holdfast.domain.data.loss_mask import PackedLossMask, join_masks, pack_mask
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.ports.token_source import Tokens, TokenShard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.shared.token_store.derived_arrays import Arrays, DerivedArrayStore
    from holdfast.adapters.token_source.shards import ReadOptions, TokenFile

_BATCH_ROWS = 1024
_MASK = "loss_mask"

_log = logging.getLogger(__name__)


def columns_used(file: TokenFile, options: ReadOptions) -> list[str]:
    """Return the columns of ``file`` that say what is trained on and what is padding; none if it cannot be read."""
    arrow, _ = _pyarrow()
    try:
        return _beside(_schema(file).names, options)
    except (arrow.ArrowException, OSError):
        return []


def columnar_shards(
    file: TokenFile, options: ReadOptions, derived: DerivedArrayStore, folder: Path
) -> Iterator[FileShard]:
    """Yield the shards of ``file``, groups of its rows, after converting them into ``folder`` if necessary."""

    def convert() -> Arrays:
        number, is_trained = 0, False
        for number, arrays in enumerate(_converted(file, options), start=1):
            derived.get(_path(folder, number - 1), lambda arrays=arrays: arrays)  # type: ignore[misc]
            is_trained = is_trained or _MASK not in arrays or bool(arrays[_MASK].any())
        if number and not is_trained:
            msg = f"no token of {file.name} is trained on, as its columns of labels and masks have it: check them"
            raise DataError(msg)
        return {"num_shards": np.array([number], np.int64)}

    for number in range(int(derived.get(folder / "converted.safetensors", convert)["num_shards"][0])):
        arrays = _get(file, options, derived, folder, number)
        marked = [arrays[name].tobytes().hex() for name in ("marks",) if name in arrays]
        fingerprint = fingerprint_of(arrays["content"].tobytes().hex(), options.end_of_text, *marked)
        name = shard_name(file, number)
        shard = TokenShard(name, len(arrays["ids"]), len(arrays["hashes"]), fingerprint)
        yield FileShard(shard, partial(_open, file, options, derived, folder, number), file.name, file.place)


def _open(file: TokenFile, options: ReadOptions, derived: DerivedArrayStore, folder: Path, number: int) -> Tokens:
    arrays = _get(file, options, derived, folder, number)
    mask = PackedLossMask(arrays[_MASK], len(arrays["ids"])) if _MASK in arrays else None
    return Tokens(arrays["ids"], arrays["offsets"], arrays["hashes"], mask)


def _get(file: TokenFile, options: ReadOptions, derived: DerivedArrayStore, folder: Path, number: int) -> Arrays:
    return derived.get(_path(folder, number), lambda: next(islice(_converted(file, options), number, None)))


def _path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:06d}.safetensors"


def _converted(file: TokenFile, options: ReadOptions) -> Iterator[Arrays]:
    shard = _GrowingShard(options.end_of_text)
    for rows in _rows(file, options):
        shard.add(rows, narrowest(options.vocabulary_size))
        if shard.num_tokens >= options.shard_tokens:
            yield shard.finish()
            shard = _GrowingShard(options.end_of_text)
    if shard.num_tokens:
        yield shard.finish()


class _GrowingShard:
    """The documents of a shard, which grows row by row."""

    def __init__(self, end_of_text: int) -> None:
        self.num_tokens = 0
        self._end_of_text = end_of_text
        self._ids: list[NDArray[np.unsignedinteger]] = []
        self._masks: list[NDArray[np.bool_] | None] = []
        self._scanner = DocumentScanner(end_of_text)

    def add(self, rows: TokenRows, dtype: np.dtype[Any]) -> None:
        """Add ``rows``, as ``dtype``.

        A row of which not all is trained on is one document as it is, but for those that begin within it. In others a
        document ends after each end-of-text too, which is added where a document lacks it.
        """
        ids, trained = rows.ids.astype(dtype), rows.is_trained
        is_last = np.diff(rows.row, append=-1) != 0
        if rows.is_first is not None:
            is_last[:-1] |= rows.is_first[1:]
        is_end = ids == self._end_of_text
        is_whole = np.zeros(rows.num_rows, np.bool_)
        if trained is not None:
            is_whole[rows.row[~trained]] = True
        is_plain = ~is_whole[rows.row]
        lacks_end = is_last & is_plain & ~is_end
        added = np.sort(np.concatenate([np.flatnonzero(lacks_end) + 1, rows.empty]))
        ends = np.insert((is_last & ~lacks_end) | (is_plain & is_end), added, values=True)
        ids = np.insert(ids, added, self._end_of_text)
        self._scanner.feed(ids, np.flatnonzero(ends) + 1)
        self._ids.append(ids)
        self._masks.append(np.insert(trained, added, values=True) if trained is not None and is_whole.any() else None)
        self.num_tokens += len(ids)

    def finish(self) -> Arrays:
        """Return the arrays of the shard; ``marks`` is a hash of what the ids do not tell, if there is any."""
        columns = {"ids": np.concatenate(self._ids), **self._scanner.finish()}
        mask = join_masks(self._masks, [len(ids) for ids in self._ids])
        if mask is not None:
            columns[_MASK] = pack_mask(mask)
        is_end = columns["ids"] == self._end_of_text
        if mask is not None or not np.array_equal(np.flatnonzero(is_end) + 1, columns["offsets"][1:]):
            marks = columns["offsets"].tobytes() + (b"" if mask is None else columns[_MASK].tobytes())
            columns["marks"] = np.frombuffer(blake3(marks).digest(length=16), np.uint8)
        return columns


def _rows(file: TokenFile, options: ReadOptions) -> Iterator[TokenRows]:
    """Yield consecutive rows, checked, without their padding."""
    arrow, _ = _pyarrow()
    row = 0
    try:
        for batch in _batches(file, options):
            ids, of_row = _flat(file, batch, options.column, row)
            rows = TokenRows(ids, of_row, batch.num_rows, partial(_name, file, row))
            for name in _beside(batch.schema.names, options):
                rows.use(name, *_flat(file, batch, name, row))
            check_ids(rows.ids, options.vocabulary_size, rows.place)
            yield rows
            row += batch.num_rows
    except (arrow.ArrowException, OSError) as error:
        msg = f"{file.name} cannot be read after row {row} ({' '.join(str(error).split())}): fetch it again"
        raise DataError(msg) from error


def _name(file: TokenFile, first: int, row: int) -> str:
    return f"row {first + row} of {file.name}"


def _flat(file: TokenFile, batch: Any, column: str, row: int) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
    """Return the values of a column of lists, and the number of the row of each in ``batch``."""
    array = batch.column(column)
    what = "token ids" if column == batch.schema.names[0] else "values"
    if array.null_count or array.flatten().null_count:
        msg = f"{file.name} lacks {what} in column {column!r} after row {row}: leave those rows out"
        raise DataError(msg)
    has_lengths = hasattr(array, "value_lengths")
    lengths = array.value_lengths() if has_lengths else np.full(len(array), array.type.list_size)
    values = array.flatten()
    kind = _pyarrow()[0].types
    values = values.cast("int8") if kind.is_boolean(values.type) else values
    return values.to_numpy(zero_copy_only=False), np.repeat(np.arange(len(array)), lengths)


def _batches(file: TokenFile, options: ReadOptions) -> Iterator[Any]:
    """Yield record batches of the columns that are used."""
    _, parquet = _pyarrow()
    if file.path.suffix.lower() == ".parquet":
        with TwiceReadFile(file.path) as source, parquet.ParquetFile(source) as table:
            yield from table.iter_batches(_BATCH_ROWS, columns=_checked(file, table.schema_arrow, options))
        return
    with TwiceReadFile(file.path) as source:
        table, batches = _opened(source)
        names = _checked(file, table.schema, options)
        yield from (batch.select(names) for batch in batches)


def _schema(file: TokenFile) -> Any:
    _, parquet = _pyarrow()
    if file.path.suffix.lower() == ".parquet":
        return parquet.read_schema(file.path)
    with TwiceReadFile(file.path) as source:
        return _opened(source)[0].schema


def _opened(source: Any) -> tuple[Any, Iterator[Any]]:
    arrow, _ = _pyarrow()
    try:
        table = arrow.ipc.open_file(source)
    except arrow.ArrowInvalid:  # not the format with a footer, so the one without
        source.seek(0)
        table = arrow.ipc.open_stream(source)
        return table, iter(table)
    return table, (table.get_batch(number) for number in range(table.num_record_batches))


def _beside(names: Sequence[str], options: ReadOptions) -> list[str]:
    """Return the columns beside the ids that are used; a run that began by the first rules uses none."""
    return [] if options.rules == FIRST_RULES else columns_beside(names, options.column)


def _checked(file: TokenFile, schema: Any, options: ReadOptions) -> list[str]:
    """Return the columns that are used, and say which ones are not."""
    arrow, _ = _pyarrow()
    column = options.column
    if column not in schema.names:
        msg = f"{file.name} has no column {column!r} but {', '.join(schema.names)}: name the one with the token ids"
        raise DataError(msg)
    names = [column, *_beside(schema.names, options)]
    for name in names:
        kind = schema.field(name).type
        is_list = arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind)
        is_number = is_list and (
            arrow.types.is_integer(kind.value_type) or (name != column and arrow.types.is_boolean(kind.value_type))
        )
        if not is_number:
            remedy = "name another column" if name == column else "correct it, or leave it out"
            msg = f"the column {name!r} of {file.name} holds {kind} instead of lists of integers: {remedy}"
            raise DataError(msg)
    if unused := [name for name in schema.names if name not in names]:
        _log.warning("%s: only %s are used, not %s", file.name, ", ".join(names), ", ".join(unused))
    return names


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.ipc
        from pyarrow import parquet
    except ImportError as error:
        msg = "Parquet and Arrow files need a package that is not installed: run pip install 'holdfast-lm[parquet]'"
        raise ConfigurationError(msg) from error
    return pa, parquet


LABELS, PADDING, POSITIONS = "labels", "attention_mask", "position_ids"
MASKS = ("loss_mask", "assistant_masks", "completion_mask")

_IGNORED = -100


def columns_beside(names: Sequence[str], column: str) -> list[str]:
    """Return those of ``names`` that say something about the ids in ``column``."""
    return [name for name in (LABELS, *MASKS, PADDING, POSITIONS) if name in names and name != column]


@final
class TokenRows:
    """Consecutive rows of a table: ``ids`` (tokens,), and the ``row`` of each, int64 (tokens,), in ``num_rows`` rows.

    ``is_trained`` (tokens,) is the loss mask, ``is_first`` (tokens,) says where a document begins within its row; None
    if all tokens are trained on, and if no document does. ``name(row)`` names a row in messages.
    """

    def __init__(
        self, ids: NDArray[np.integer[Any]], row: NDArray[np.int64], num_rows: int, name: Callable[[int], str]
    ) -> None:
        self.ids = ids
        self.row = row
        self.num_rows = num_rows
        self.is_trained: NDArray[np.bool_] | None = None
        self.is_first: NDArray[np.bool_] | None = None
        self._name = name
        self._given = row
        self._kept = np.arange(len(ids))

    @property
    def empty(self) -> NDArray[np.int64]:
        """Return for each row that was given without ids the number of the ids before it."""
        given, left = (np.bincount(rows, minlength=self.num_rows) for rows in (self._given, self.row))
        found: NDArray[np.int64] = np.cumsum(left)[given == 0]
        return found

    def place(self, number: int) -> str:
        """Return the name of the place of the id ``number``, for messages."""
        position = number - int(np.searchsorted(self.row, self.row[number]))
        return f"the id at position {position} of {self._name(int(self.row[number]))}"

    def use(self, column: str, values: NDArray[np.integer[Any]], row: NDArray[np.int64]) -> None:
        """Take ``values`` of ``column``, in the rows ``row``, into account; raises ``DataError`` if they fit no ids.

        Padding must be used after the labels and masks, and the positions last.
        """
        if not np.array_equal(row, self._given):
            lengths = [np.bincount(rows, minlength=self.num_rows) for rows in (row, self._given)]
            first = int(np.argmax(lengths[0] != lengths[1]))
            msg = (
                f"{self._name(first)} has {lengths[0][first]} values in the column {column!r} for {lengths[1][first]} "
                "token ids: each id needs one"
            )
            raise DataError(msg)
        if column == POSITIONS:
            self._begin(values[self._kept])
            return
        if column == LABELS:
            self._train_on(self._labelled(values))
            return
        if len(values) and not (int(values.min()) >= 0 and int(values.max()) <= 1):
            first = int(np.argmax((values != 0) & (values != 1)))
            msg = f"the column {column!r} has {values[first]} for {self.place(first)}: it must have 0 or 1"
            raise DataError(msg)
        if column == PADDING:
            self._keep(values == 1)
        else:
            self._train_on(values == 1)

    def _labelled(self, labels: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        is_labelled: NDArray[np.bool_] = labels != _IGNORED
        if (is_other := is_labelled & (labels != self.ids)).any():
            first = int(np.argmax(is_other))
            msg = (
                f"the label of {self.place(first)} is {labels[first]}, but the id is {self.ids[first]}: labels must be "
                f"the ids themselves, not shifted, or {_IGNORED} for what is not trained on"
            )
            raise DataError(msg)
        return is_labelled

    def _train_on(self, is_trained: NDArray[np.bool_]) -> None:
        self.is_trained = is_trained if self.is_trained is None else self.is_trained & is_trained

    def _keep(self, is_kept: NDArray[np.bool_]) -> None:
        kept = np.flatnonzero(is_kept)
        has_gap = (np.diff(kept) != 1) & (np.diff(self.row[kept]) == 0)
        if has_gap.any():
            place = self.place(int(kept[np.argmax(has_gap)]) + 1)
            msg = f"the column {PADDING!r} hides {place}, within the row: only padding around a row is left out"
            raise DataError(msg)
        self.ids, self.row, self._kept = self.ids[kept], self.row[kept], kept
        self.is_trained = None if self.is_trained is None else self.is_trained[kept]

    def _begin(self, positions: NDArray[np.integer[Any]]) -> None:
        is_first = positions == 0
        begins_row = np.diff(self.row, prepend=-1) != 0
        is_next = np.diff(positions.astype(np.int64), prepend=-1) == 1
        if (is_odd := ~is_first & (begins_row | ~is_next)).any():
            first = int(np.argmax(is_odd))
            msg = (
                f"the column {POSITIONS!r} has {positions[first]} for {self.place(first)}: positions must count from 0 "
                "in each document"
            )
            raise DataError(msg)
        self.is_first = is_first & ~begins_row
