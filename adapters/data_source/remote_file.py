"""Fetches byte ranges of a remote file through its file system."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from fsspec.asyn import AsyncFileSystem

from holdfast.adapters.data_source.s3_stores import read_object
from holdfast.adapters.shared.network.retry import fulfil
from holdfast.domain.urls import without_secrets

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from fsspec import AbstractFileSystem


@final
@dataclass(frozen=True, slots=True)
class RemoteFile:
    """The file at ``path`` of ``file_system``; ``etag``, if given, is the version that its content must have.

    S3 and HTTP check the version; a weak HTTP ETag (``W/"..."``) does not guarantee equal bytes.
    """

    file_system: AbstractFileSystem
    path: str
    etag: str | None

    @property
    def name(self) -> str:
        """Return the name of the file for messages."""
        return without_secrets(self.file_system.unstrip_protocol(self.path))

    def fetch(self, begin: int, end: int) -> Future[bytes | memoryview]:
        """Start reading the bytes from ``begin`` to before ``end``.

        Cancelling the future drops the connection, or abandons a thread if the file system cannot be interrupted.
        """
        files = self.file_system
        if isinstance(files, AsyncFileSystem) and files.async_impl and not files.asynchronous:
            loop = files.loop  # in a forked process this raises, so the coroutine comes after it
            return asyncio.run_coroutine_threadsafe(self._coroutine(begin, end), loop)
        body: Future[bytes | memoryview] = Future()
        call = partial(files.cat_file, self.path, start=begin, end=end)
        threading.Thread(target=fulfil, args=(body, call), name="range", daemon=True).start()
        return body

    def _coroutine(self, begin: int, end: int) -> Coroutine[Any, Any, bytes | memoryview]:
        protocols = self.file_system.protocol
        if "s3" in protocols:
            return read_object(self.file_system, self.path, self.etag, begin, end)
        options: dict[str, Any] = {}
        if "http" in protocols:
            # a body compressed in transit has another length
            headers = {"Accept-Encoding": "identity"} | self.file_system.kwargs.get("headers", {})
            is_exact = self.etag is not None and not self.etag.startswith("W/")
            options["headers"] = headers | ({"If-Match": self.etag} if is_exact else {})
        cat_file = self.file_system._cat_file  # noqa: SLF001 - fsspec's asynchronous half
        return cat_file(self.path, start=begin, end=end, **options)  # type: ignore[no-any-return]
