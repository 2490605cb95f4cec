"""Reads Parquet files: a document is one column of a row, a position the number of the row in its file."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from holdfast.adapters.data_source.formats.columnar import documents, problem_with
from holdfast.ports.data_source import Rejected

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from holdfast.adapters.data_source.formats.records import Fields, Part
    from holdfast.ports.data_source import Document

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
