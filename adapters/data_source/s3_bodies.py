"""Reads ranges of S3 objects by obstore where it can replace s3fs."""

from __future__ import annotations

import atexit
import re
import time
from asyncio import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from threading import Event
from typing import TYPE_CHECKING, Any

from holdfast.adapters.data_source.s3_stores import give_up, store_of
from holdfast.adapters.shared.network.retry import TRANSIENT_STATUSES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fsspec import AbstractFileSystem
    from obstore import GetOptions
    from obstore.store import S3Store

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_KIND = re.compile(r"HttpError \{\s*kind: (Connect|Request|Timeout|Interrupted)\b")
_FAREWELL_SECONDS = 0.05  # a body that arrived or was dropped leaves its thread in a fraction of that


@dataclass(frozen=True, slots=True)
class _Part:
    key: str
    version: str | None
    etag: str | None
    begin: int
    end: int

    @property
    def is_plain(self) -> bool:
        """Return whether obstore uses the key unchanged."""
        return self.key.isprintable() and {"", ".", ".."}.isdisjoint(self.key.split("/"))


async def read_object(
    files: AbstractFileSystem, path: str, etag: str | None, begin: int, end: int
) -> bytes | memoryview:
    """Return the bytes of an S3 object from ``begin`` to before ``end``, if it still bears ``etag`` or that is None.

    obstore reads them, as it needs little of the interpreter's time; its transient errors are raised as
    ``ConnectionError`` and ``TimeoutError``. s3fs reads if :func:`store_of` returns None, or if the key has empty parts
    or unprintable characters. A request that obstore cannot fulfil is repeated by s3fs, which follows a bucket to its
    region and has its own certificates: its error is raised, and if it succeeds, s3fs reads the bucket from then on.
    """
    bucket, key, version = files.split_path(path)
    part = _Part(key, version, etag, begin, end)
    store = await store_of(files, bucket) if part.is_plain and not _leaving.is_set() else None
    if store is None:
        return await _by_s3fs(files, bucket, part)
    try:
        return await _by_obstore(store, part)
    except Exception as error:  # noqa: BLE001 - it has one of its own for each refusal
        _raise_if_passing(error)
    content = await _by_s3fs(files, bucket, part)
    await give_up(files, bucket)
    return content


async def _by_s3fs(files: AbstractFileSystem, bucket: str, part: _Part) -> bytes:
    condition = ({"IfMatch": part.etag} if part.etag else {}) | ({"VersionId": part.version} if part.version else {})
    bounds = f"bytes={part.begin}-{part.end - 1}"
    call = files._call_s3  # noqa: SLF001 - the only way to a conditional read in s3fs
    response = await call("get_object", Bucket=bucket, Key=part.key, Range=bounds, **condition)
    try:
        return await response["Body"].read()  # type: ignore[no-any-return]
    finally:
        response["Body"].close()


async def _by_obstore(store: S3Store, part: _Part) -> memoryview:
    from obstore import get_async

    options: GetOptions = {"range": (part.begin, part.end)}
    if part.etag:
        options["if_match"] = part.etag
    if part.version:
        options["version"] = part.version
    answer = await _started(lambda: get_async(store, part.key, options=options))
    return memoryview(await _started(answer.bytes_async))


def _raise_if_passing(error: Exception) -> None:
    """Raise ``ConnectionError`` or ``TimeoutError`` if the text of ``error`` shows that it is transient.

    obstore has no types for these errors.

    The server's answer is not quoted, as it may contain a signature.
    """
    text = str(error)
    if status := _STATUS.search(text):
        if int(status[1]) in TRANSIENT_STATUSES:
            msg = f"the server answered {status[1]}"
            raise ConnectionError(msg) from None
        return
    kind = _KIND.search(text)
    if kind is None or "certificate" in text[kind.end() :].lower():
        return
    if kind[1] == "Timeout":
        msg = "the server was silent for too long"
        raise TimeoutError(msg) from error
    msg = "the connection was refused or lost"
    raise ConnectionError(msg) from error


_flying: set[asyncio.Future[Any]] = set()
_leaving = Event()


def _started(call: Callable[[], Any]) -> asyncio.Future[Any]:
    if _leaving.is_set():
        raise CancelledError
    future: asyncio.Future[Any] = call()
    _flying.add(future)
    future.add_done_callback(_flying.discard)
    _part_in_time(future.get_loop())
    return future


@cache
def _part_in_time(loop: asyncio.AbstractEventLoop) -> None:
    atexit.register(_leave, loop)


def _leave(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel pending requests: an obstore thread that returns while the interpreter ends aborts the process."""
    _leaving.set()
    with suppress(RuntimeError):  # a loop that is closed
        loop.call_soon_threadsafe(_drop)
    time.sleep(_FAREWELL_SECONDS)


def _drop() -> None:
    for future in tuple(_flying):
        future.cancel()
