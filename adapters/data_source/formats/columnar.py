"""Turns rows of Arrow record batches into documents."""

from __future__ import annotations

import json
from itertools import accumulate, count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.adapters.data_source.formats.records import Fields, ambiguous, document, record_document, too_long
from holdfast.ports.data_source import Document, Rejected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.adapters.data_source.formats.records import Part

_TEXTS = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
)


def reads_json(schema: pa.Schema, fields: Fields) -> bool:
    """Return whether a column of ``fields`` holds JSON, which is decoded to the objects it stands for."""
    return any(_holds_json(schema.field(name).type) for name in fields.names_among(schema.names))


def problem_with(schema: pa.Schema, fields: Fields, file: str) -> str | None:
    """Return an error message if ``schema`` lacks a field or its text column holds no text."""
    kind = _type_of(schema, fields.text) if fields.task == "text" else None
    paths = [name for name in fields.names if fields.is_path(name) and _type_of_member(schema, name) is not None]
    if both := [name for name in paths if name in schema.names and not fields.is_former]:
        return f"{file}: {ambiguous(both[0])}"
    if problem := fields.missing(dict.fromkeys([*schema.names, *paths]), file):
        return problem
    if kind is None:
        return None
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if _is_json(kind) or any(is_text(kind) for is_text in _TEXTS):
        return None
    return f"{file}: the column {fields.text!r} holds {kind}, not text: set data.text_field to one that holds text"


def _type_of(schema: pa.Schema, name: str) -> pa.DataType | None:
    """Return the type of the column ``name``, or for ``a.b`` of the member b of structs in a, or None."""
    return schema.field(name).type if name in schema.names else _type_of_member(schema, name)


def _type_of_member(schema: pa.Schema, name: str) -> pa.DataType | None:
    column, *members = name.split(".")
    kind = schema.field(column).type if column in schema.names else pa.null()
    for member in members:
        if not pa.types.is_struct(kind) or kind.get_field_index(member) < 0:
            return None
        kind = kind.field(member).type
    return kind if members else None


def _column_of(batch: pa.RecordBatch, name: str) -> Any:
    if name in batch.schema.names:
        return batch.column(name)
    column, *members = name.split(".")
    return pc.struct_field(batch.column(column), members)


def documents(
    batch: pa.RecordBatch, position: int, file: str, fields: Fields, record_bytes: int
) -> Iterator[Document | Rejected]:
    """Yield the documents of ``batch``, whose first row has ``position``."""
    if fields.task != "text":
        yield from _records(batch, position, file, fields, record_bytes)
        return
    texts = _texts(_column_of(batch, fields.text))
    others = [(name, _values(_column_of(batch, name))) for name in fields.names[1:]]
    for index, text in enumerate(texts):
        record = {fields.text: text, **{name: values[index] for name, values in others}} if others else None
        if fields.filter and not fields.wants(record or {fields.text: text}):
            continue
        start = position + index
        place = f"{file}, row {start}"
        judged: Document | Rejected | None
        if isinstance(text, bytes):
            reason = f"{place}: the text is not UTF-8: convert it or leave the row out"
            judged = Rejected(reason, start, start + 1)
        elif isinstance(text, str) and len(text) > record_bytes // 4 and len(text.encode()) > record_bytes:
            judged = too_long(place, start, start + 1, record_bytes)
        else:
            judged = document(text, place, start, start + 1, fields, record)
        if judged:
            yield judged


def _records(
    batch: pa.RecordBatch, position: int, file: str, fields: Fields, record_bytes: int
) -> Iterator[Document | Rejected]:
    """Yield the documents that several fields of a row make up."""
    names = fields.names_among(batch.schema.names)
    columns = [batch.column(name) for name in names]
    for column in columns:
        column.validate(full=True)
    for index in range(batch.num_rows):
        start = position + index
        place = f"{file}, row {start}"
        judged: Document | Rejected | None
        try:
            record = {
                name: _value(column[index].as_py(), column.type) for name, column in zip(names, columns, strict=True)
            }
        except UnicodeDecodeError:
            yield Rejected(f"{place}: a text is not UTF-8: convert it or leave the row out", start, start + 1)
            continue
        except ValueError:
            yield Rejected(f"{place}: a column of JSON holds something else: repair the row", start, start + 1)
            continue
        if fields.filter and not fields.wants(record):
            continue
        judged = record_document(record, place, start, start + 1, fields)
        if isinstance(judged, Document) and len(judged.text.encode()) > record_bytes:
            judged = too_long(place, start, start + 1, record_bytes)
        if judged:
            yield judged


def _value(value: Any, kind: pa.DataType) -> Any:
    """Return ``value`` of a column of type ``kind`` with its JSON decoded and its bytes as text.

    Null members that a column gives to objects which lack them are left out; those within JSON are its own. Raises
    ``ValueError``, of which ``UnicodeDecodeError`` is one.
    """
    if value is None:
        return None
    if _is_json(kind):
        return json.loads(value)
    if pa.types.is_struct(kind):
        fields = {field.name: _value(value[field.name], field.type) for field in kind}
        return {name: member for name, member in fields.items() if member is not None}
    if _is_list(kind):
        return [_value(item, kind.value_type) for item in value]
    if isinstance(value, dict | list):  # of a type without members, such as a map
        return _without_nulls(value)
    return value.decode() if isinstance(value, bytes) else value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _is_json(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.BaseExtensionType) and bool(kind.extension_name == "arrow.json")


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(is_list or types.is_list_view(kind) or types.is_large_list_view(kind))


def _holds_json(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_holds_json(field.type) for field in kind)
    return _holds_json(kind.value_type) if _is_list(kind) else _is_json(kind)


def _texts(column: Any) -> list[str | bytes | None]:
    # Arrow does not check that texts are UTF-8; an invalid one arrives as bytes
    if pa.types.is_dictionary(column.type) or _is_json(column.type):
        return [_text(value) if isinstance(value, bytes) else value for value in _values(column)]
    is_view = pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type)
    raw = column.cast(pa.binary_view() if is_view else pa.large_binary())
    raw.validate(full=True)
    try:
        return [_text(value) if isinstance(value, bytes) else value for value in column.to_pylist()]
    except UnicodeDecodeError:
        return [_text(value) for value in raw.to_pylist()]


def _values(column: Any) -> list[Any]:
    # Arrow would follow offsets that point outside of the file
    column.validate(full=True)
    values = list(column.to_pylist())
    return [_value(value, column.type) for value in values] if _holds_json(column.type) else values


def _text(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value


_ROWS = 1 << 32
_FILE_MAGIC = b"ARROW1"


def arrow_schema(file: Any) -> pa.Schema:
    """Return the columns of ``file``."""
    return (pa.ipc.open_file if _has_footer(file) else pa.ipc.open_stream)(file).schema


def split_arrow(file: Any, size: int, unit_bytes: int) -> list[tuple[int, int]]:
    """Return parts of whole record batches, each by its first position and about its bytes; a stream has one."""
    if not _has_footer(file):
        return [(0, size)]
    num_batches = pa.ipc.open_file(file).num_record_batches
    step = max(num_batches * unit_bytes // max(size, 1), 1)
    starts = range(0, num_batches, step)
    return [(start * _ROWS, size * min(step, num_batches - start) // num_batches) for start in starts]


def read_arrow(file: Any, part: Part, fields: Fields, record_bytes: int) -> Iterator[Document | Rejected]:
    """Yield the text column of each row, one record batch after the other; other columns are not decoded."""
    has_footer = _has_footer(file)
    opened = pa.ipc.open_file if has_footer else pa.ipc.open_stream
    schema = opened(file).schema
    if problem := problem_with(schema, fields, part.file):
        yield Rejected(problem, part.start, None)
        return
    file.seek(0)
    names = fields.names_among(schema.names)
    wanted = pa.ipc.IpcReadOptions(included_fields=[schema.get_field_index(name) for name in names])
    batches = (_random if has_footer else _streamed)(opened(file, options=wanted), part.start // _ROWS)
    for number, batch in batches:
        begin = number * _ROWS
        if begin >= part.limit:
            return
        first = max(part.start - begin, 0)
        yield from documents(batch.slice(first), begin + first, part.file, fields, record_bytes)


def _random(table: pa.RecordBatchFileReader, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    for number in range(first, table.num_record_batches):
        yield number, table.get_batch(number)


def _streamed(table: pa.RecordBatchReader, first: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    for number in count():
        try:
            batch = table.read_next_batch()
        except StopIteration:
            return
        if number >= first:
            yield number, batch


def _has_footer(file: Any) -> bool:
    magic = file.read(len(_FILE_MAGIC))
    file.seek(0)
    return bool(magic == _FILE_MAGIC)


_BATCH_BYTES = 4 << 20
_MOST_ROWS = 512
_PAGE_BYTES = 1 << 20


def parquet_schema(file: Any) -> pa.Schema:
    """Return the columns of ``file``."""
    return pq.ParquetFile(file).schema_arrow


def num_rows(file: Any) -> int:
    """Return the number of rows of ``file``."""
    return int(pq.ParquetFile(file).metadata.num_rows)


def split_parquet(file: Any, size: int, unit_bytes: int) -> list[tuple[int, int]]:
    """Return parts of whole row groups, each by its first row and about its bytes, which are ``unit_bytes`` or more.

    ``size`` is that of the file.
    """
    metadata = pq.ParquetFile(file).metadata
    # metadata of the row group only: pyarrow ends the process on damaged metadata of a column
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    plain = sum(group.total_byte_size for group in groups)
    parts: list[tuple[int, int]] = []
    first = row = part = 0
    for number, group in enumerate(groups, 1):
        row += group.num_rows
        part += group.total_byte_size * size // max(plain, 1)
        if part >= unit_bytes or number == len(groups):
            parts.append((first, part))
            first, part = row, 0
    return parts


def read_parquet(file: Any, part: Part, fields: Fields, record_bytes: int) -> Iterator[Document | Rejected]:
    """Yield the text of each row; only the text column and those of the filter are read, some pages at a time."""
    table = pq.ParquetFile(file, pre_buffer=False, buffer_size=_PAGE_BYTES)
    if problem := problem_with(table.schema_arrow, fields, part.file):
        yield Rejected(problem, part.start, None)
        return
    names = fields.names_among(table.schema_arrow.names)
    sizes = [table.metadata.row_group(number).num_rows for number in range(table.num_row_groups)]
    edges = list(accumulate(sizes, initial=0))
    groups = [
        number for number, size in enumerate(sizes) if part.start < edges[number] + size and edges[number] < part.limit
    ]
    row = edges[groups[0]] if groups else 0
    for number in groups:
        group = table.metadata.row_group(number)
        rows = min(max(_BATCH_BYTES * group.num_rows // max(group.total_byte_size, 1), 1), _MOST_ROWS)
        for batch in table.iter_batches(rows, [number], names, use_threads=False):
            first = max(part.start - row, 0)
            yield from documents(batch.slice(first), row + first, part.file, fields, record_bytes)
            row += batch.num_rows
