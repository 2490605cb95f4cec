"""Files as streams of bytes, wherever they lie."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fsspec.implementations.memory import MemoryFileSystem

from domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from adapters.data_source.listing import StoredFile

    OpenRemote = Callable[..., io.BufferedReader[Any]]

_BUFFER_BYTES = 1 << 20
_RANDOM_BYTES = 4 << 20


@contextmanager
def opened(file: StoredFile, open_remote: OpenRemote, *, is_random: bool) -> Iterator[io.BufferedReader[Any]]:
    """Give the bytes of ``file`` as stored, with little read ahead where access is random.

    ``open_remote`` has the signature of ``adapters.data_source.ranges.open_ranges``.
    """
    stream: io.BufferedReader[Any]
    if file.is_local:
        stream = io.BufferedReader(io.FileIO(file.path), _BUFFER_BYTES)
    elif isinstance(file.file_system, MemoryFileSystem):
        # all who open a file in memory share one handle, and its place
        stream = io.BufferedReader(io.BytesIO(file.file_system.cat_file(file.path)))
    else:
        how = {"ahead": 1, "range_bytes": _RANDOM_BYTES} if is_random else {}
        stream = open_remote(file.file_system, file.path, file.unit.size, etag=file.etag, **how)
    with stream:
        if file.is_local and not file.is_unchanged():
            msg = f"{file.unit.name} was changed since it was listed: start again, and leave the files alone meanwhile"
            raise DataError(msg)
        yield stream
