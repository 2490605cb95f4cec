"""Reads Arrow IPC and Feather files: a document is one column of a row, a position the number of a batch and a row.

It is the number of the record batch times 2^32 plus the row in it, so a batch is found without reading the others.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.adapters.data_source.formats.columnar import documents, problem_with
from holdfast.ports.data_source import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.adapters.data_source.formats.records import Fields, Part
    from holdfast.ports.data_source import Document

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
