"""Lists remote file systems and retries their transient errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, final

from fsspec.implementations.local import LocalFileSystem

from holdfast.adapters.shared.network.retry import http_status, is_transient, retry, within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fsspec import AbstractFileSystem

    from holdfast.adapters.data_source.file_access import FileAccess

T = TypeVar("T")

_FLAT = {"s3", "s3a", "gs", "gcs", "hf"}  # they list all that is below a folder at once
_GONE = (404, 410)


@final
@dataclass(frozen=True, slots=True)
class RemoteFileSystem:
    """Lists ``file_system`` with retries; raises its errors if they are permanent or last too long."""

    file_system: AbstractFileSystem
    access: FileAccess

    @property
    def is_local(self) -> bool:
        """Return whether it is this machine's disk."""
        return isinstance(self.file_system, LocalFileSystem)

    def info(self, path: str) -> dict[str, Any]:
        """Return the file system's information about ``path``, empty if it does not exist."""
        call = partial(self.file_system.info, path)
        try:
            if self.is_local:
                return dict(call())
            return dict(self._asked(lambda left: within(min(left, self.access.stall_seconds), call)))
        except FileNotFoundError as error:
            if _is_without_bucket(error):
                raise
            return {}

    def files(self, folder: str, depth: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the files down to ``depth`` levels below a remote ``folder``, each with its information.

        ``walk`` of fsspec would skip a folder that cannot be listed, and its files would be missing.
        """
        if depth is None and not _FLAT.isdisjoint(_protocols(self.file_system)):
            found = self._asked(lambda _: self.file_system.find(folder, detail=True))
            yield from ((path, info) for path, info in found.items() if info["type"] != "directory")
            return
        for info in self._list(folder):
            path = info["name"].rstrip("/")
            if path == folder.rstrip("/"):
                continue
            if info["type"] != "directory":
                yield info["name"], info
            elif depth is None or depth > 1:
                yield from self.files(path, None if depth is None else depth - 1)

    def _list(self, folder: str) -> list[dict[str, Any]]:
        try:
            return sorted(
                self._asked(lambda _: self.file_system.ls(folder, detail=True)), key=lambda info: str(info["name"])
            )
        except FileNotFoundError:  # it was deleted meanwhile
            return []

    def _asked(self, call: Callable[[float], T]) -> T:
        numbers = count()

        def attempt(left: float) -> T:
            if next(numbers):
                self.access.counter.add(read_retries=1)
            try:
                return call(left)
            except FileNotFoundError as error:
                if (cause := _hidden_by(error)) is not None:
                    raise cause from None
                raise

        return retry(attempt, self.access.policy, is_transient)


def _hidden_by(error: FileNotFoundError) -> BaseException | None:
    """Return the cause of an HTTP failure, which fsspec reports as a missing file; None if the file is missing."""
    cause = error.__cause__
    if cause is None or isinstance(cause, FileNotFoundError):
        return None
    status = http_status(cause)
    return cause if isinstance(cause, OSError) or (status is not None and status not in _GONE) else None


def _is_without_bucket(error: FileNotFoundError) -> bool:
    response = getattr(error.__cause__, "response", None)
    return isinstance(response, dict) and response.get("Error", {}).get("Code") == "NoSuchBucket"


def _protocols(file_system: AbstractFileSystem) -> tuple[str, ...]:
    protocol = file_system.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)
