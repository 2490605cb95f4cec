"""Parquet and Arrow files with a column of token ids, converted once into arrays that can be mapped."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.token_source.documents import DocumentScanner, check_ids, narrowest
from holdfast.adapters.token_source.shards import FileShard, fingerprint_of, shard_name
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.ports.token_source import Tokens, TokenShard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.shared.token_store.derived_arrays import Arrays, DerivedArrayStore
    from holdfast.adapters.token_source.shards import ReadOptions, TokenFile

_BATCH_ROWS = 1024


def columnar_shards(
    file: TokenFile, options: ReadOptions, derived: DerivedArrayStore, folder: Path
) -> Iterator[FileShard]:
    """Yield the shards of ``file``, groups of its rows, after converting them into ``folder`` if necessary."""

    def convert() -> Arrays:
        number = 0
        for number, arrays in enumerate(_converted(file, options), start=1):
            derived.get(_path(folder, number - 1), lambda arrays=arrays: arrays)  # type: ignore[misc]
        return {"num_shards": np.array([number], np.int64)}

    for number in range(int(derived.get(folder / "converted.safetensors", convert)["num_shards"][0])):
        arrays = _get(file, options, derived, folder, number)
        fingerprint = fingerprint_of(arrays["content"].tobytes().hex(), options.end_of_text)
        name = shard_name(file, number)
        shard = TokenShard(name, len(arrays["ids"]), len(arrays["hashes"]), fingerprint)
        yield FileShard(shard, partial(_open, file, options, derived, folder, number), file.name, file.place)


def _open(file: TokenFile, options: ReadOptions, derived: DerivedArrayStore, folder: Path, number: int) -> Tokens:
    arrays = _get(file, options, derived, folder, number)
    return Tokens(arrays["ids"], arrays["offsets"], arrays["hashes"])


def _get(file: TokenFile, options: ReadOptions, derived: DerivedArrayStore, folder: Path, number: int) -> Arrays:
    return derived.get(_path(folder, number), lambda: next(islice(_converted(file, options), number, None)))


def _path(folder: Path, number: int) -> Path:
    return folder / f"shard-{number:06d}.safetensors"


def _converted(file: TokenFile, options: ReadOptions) -> Iterator[Arrays]:
    parts: list[NDArray[np.unsignedinteger]] = []
    scanner = DocumentScanner(options.end_of_text)
    num_tokens = 0
    for ids in _ids_of_batches(file, options):
        parts.append(ids)
        scanner.feed(ids)
        num_tokens += len(ids)
        if num_tokens >= options.shard_tokens:
            yield {"ids": np.concatenate(parts), **scanner.finish()}
            parts, scanner, num_tokens = [], DocumentScanner(options.end_of_text), 0
    if num_tokens:
        yield {"ids": np.concatenate(parts), **scanner.finish()}


def _ids_of_batches(file: TokenFile, options: ReadOptions) -> Iterator[NDArray[np.unsignedinteger]]:
    row = 0
    for flat, lengths in _lists(file, options.column):
        ends = np.cumsum(lengths)
        check_ids(flat, options.vocabulary_size, partial(_place, file, row, ends))
        narrow = flat.astype(narrowest(options.vocabulary_size))
        yield _with_end_of_text(narrow, lengths, options.end_of_text)
        row += len(lengths)


def _place(file: TokenFile, row: int, ends: NDArray[np.int64], number: int) -> str:
    inside = int(np.searchsorted(ends, number, "right"))
    return (
        f"the id at position {number - (int(ends[inside - 1]) if inside else 0)} of row {row + inside} of {file.name}"
    )


def _with_end_of_text(
    flat: NDArray[np.unsignedinteger], lengths: NDArray[np.int64], end_of_text: int
) -> NDArray[np.unsignedinteger]:
    ends = np.cumsum(lengths)
    is_ended = np.zeros(len(lengths), np.bool_)
    is_ended[lengths > 0] = flat[ends[lengths > 0] - 1] == end_of_text
    return np.insert(flat, ends[~is_ended], end_of_text)


def _lists(file: TokenFile, column: str) -> Iterator[tuple[NDArray[np.integer[Any]], NDArray[np.int64]]]:
    """Yield the flat ids of consecutive rows, and the length of each row, int64 (rows,)."""
    arrow, _ = _pyarrow()
    row = 0
    try:
        for batch in _batches(file, column):
            array = batch.column(0)
            if array.null_count or array.flatten().null_count:
                msg = f"{file.name} lacks token ids in column {column!r} after row {row}: leave those rows out"
                raise DataError(msg)
            lengths = (
                array.value_lengths() if hasattr(array, "value_lengths") else np.full(len(array), array.type.list_size)
            )
            yield array.flatten().to_numpy(zero_copy_only=False), np.asarray(lengths, np.int64)
            row += len(array)
    except (arrow.ArrowException, OSError) as error:
        msg = f"{file.name} cannot be read after row {row} ({' '.join(str(error).split())}): fetch it again"
        raise DataError(msg) from error


def _batches(file: TokenFile, column: str) -> Iterator[Any]:
    arrow, parquet = _pyarrow()
    if file.path.suffix.lower() == ".parquet":
        with parquet.ParquetFile(file.path) as table:
            _check_column(file, table.schema_arrow, column)
            yield from table.iter_batches(_BATCH_ROWS, columns=[column])
        return
    with arrow.memory_map(str(file.path)) as source:
        try:
            table = arrow.ipc.open_file(source)
            batches = (table.get_batch(number) for number in range(table.num_record_batches))
        except arrow.ArrowInvalid:  # not the format with a footer, so the one without
            source.seek(0)
            table = batches = arrow.ipc.open_stream(source)
        _check_column(file, table.schema, column)
        yield from (batch.select([column]) for batch in batches)


def _check_column(file: TokenFile, schema: Any, column: str) -> None:
    arrow, _ = _pyarrow()
    if column not in schema.names:
        msg = f"{file.name} has no column {column!r} but {', '.join(schema.names)}: name the one with the token ids"
        raise DataError(msg)
    kind = schema.field(column).type
    is_list = arrow.types.is_list(kind) or arrow.types.is_large_list(kind) or arrow.types.is_fixed_size_list(kind)
    if not (is_list and arrow.types.is_integer(kind.value_type)):
        msg = f"the column {column!r} of {file.name} holds {kind} instead of lists of integers: name another column"
        raise DataError(msg)


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        import pyarrow.ipc
        from pyarrow import parquet
    except ImportError as error:
        msg = "Parquet and Arrow files need a package that is not installed: run pip install 'holdfast-lm[parquet]'"
        raise ConfigurationError(msg) from error
    return pa, parquet
