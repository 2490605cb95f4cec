"""Fetches byte ranges of a remote file through its file system."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem

from holdfast.adapters.data_source.s3_stores import read_object
from holdfast.adapters.shared.network.retry import fulfil
from holdfast.domain.urls import without_secrets

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from fsspec import AbstractFileSystem

    from holdfast.ports.data_source import Unit


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


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file that was found at a path.

    ``unit`` is the unit of the whole file, ``path`` its path in its file system, ``etag`` its version there, if HTTP
    has it too; ``is_chosen`` is false for one that was merely found in a folder. ``place`` is the common beginning of
    the names of all units of the path: the folder, the folder of a glob, or the file itself. ``is_dangling`` marks a
    link to no file.
    """

    unit: Unit
    path: str
    file_system: AbstractFileSystem
    etag: str | None
    is_chosen: bool
    place: str
    is_dangling: bool = False

    @property
    def below(self) -> str:
        """Return the path below ``place``, with its slash; empty for the file itself."""
        return self.unit.name.removeprefix(self.place)

    @property
    def is_local(self) -> bool:
        """Return whether the file lies on this machine's disk."""
        return isinstance(self.file_system, LocalFileSystem)

    def is_unchanged(self) -> bool:
        """Return whether a local file is unchanged since it was listed."""
        return self.unit.etag == local_etag(self.path)


def local_etag(path: str) -> str:
    """Return the modification time and size of the file at ``path``."""
    status = Path(path).stat()
    return f"{status.st_mtime_ns}-{status.st_size}"
