"""An object store that is reached through fsspec."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, final

from fsspec.asyn import AsyncFileSystem
from fsspec.callbacks import Callback
from typing_extensions import override

from holdfast.adapters.shared.network.retry import http_status, is_transient, retry, within
from holdfast.adapters.state_store.archive.object_store import (
    ObjectInfo,
    ObjectStore,
    count_nothing,
    part_bytes,
    tag_of,
)
from holdfast.domain.errors import StateError
from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from fsspec import AbstractFileSystem

T = TypeVar("T")


class _Counting(Callback):  # type: ignore[misc]  # fsspec is not typed
    """Passes the size of each part that fsspec has sent to ``count``."""

    def __init__(self, count: Callable[[int], object]) -> None:
        super().__init__()
        self._count = count

    @override
    def relative_update(self, inc: int = 1) -> None:
        self._count(inc)


_RANGE = 16 << 20
_AT_ONCE = 4  # parts of a file that are in memory, for uploads and downloads
_SLOWEST = 1 << 20  # bytes a second; the time for a file is added to the policy's deadline
_CONFLICT = 409  # S3's answer to simultaneous conditional writes


@final
class RemoteObjectStore(ObjectStore):
    """The objects below ``root`` on ``file_system``, each request retried under ``policy``.

    A file may take the policy's deadline plus a second per MiB. ``mask`` removes secrets from a text with URLs.
    """

    def __init__(
        self,
        file_system: AbstractFileSystem,
        root: str,
        *,
        mask: Callable[[str], str],
        policy: RetryPolicy | None = None,
    ) -> None:
        self._file_system = file_system
        self._root = root.rstrip("/")
        self._mask = mask
        self._policy = policy or RetryPolicy()
        self._is_async = isinstance(file_system, AsyncFileSystem)
        protocol = file_system.protocol
        self._protocols = {protocol} if isinstance(protocol, str) else set(protocol)

    @override
    def name(self, key: str = "") -> str:
        return self._mask(str(self._file_system.unstrip_protocol(self._path(key))).rstrip("/"))

    @override
    def find(self, folder: str = "") -> Mapping[str, ObjectInfo]:
        # the base class would skip a folder that cannot be listed, and its objects would be missing
        options = {} if self._is_async else {"on_error": "raise"}
        with self._doing("listed", folder):
            found = self._unless_missing(lambda: self._file_system.find(self._path(folder), detail=True, **options))
        inside = f"{self._root}/"
        return {
            name.removeprefix(inside): ObjectInfo(int(info["size"]), tag_of(info))
            for name, info in (found or {}).items()
            if info["type"] == "file" and name.startswith(inside)
        }

    @override
    def info(self, key: str) -> ObjectInfo | None:
        with self._doing("read", key):
            info = self._unless_missing(lambda: self._file_system.info(self._path(key)))
        return ObjectInfo(int(info["size"]), tag_of(info)) if info and info["type"] == "file" else None

    @override
    def read(self, key: str) -> bytes | None:
        with self._doing("read", key):
            return self._unless_missing(lambda: bytes(self._file_system.cat_file(self._path(key))))

    @override
    def create(self, key: str, data: bytes) -> bool:
        with self._doing("written", key):
            try:
                self._asked(lambda: self._file_system.pipe_file(self._path(key), data, mode="create"))
            except Exception as error:
                if is_transient(error) or (present := self.read(key)) is None:
                    raise
                return present == data  # a retry after a lost answer finds the object of the first attempt
            return True

    @override
    def upload(self, key: str, path: Path, count: Callable[[int], object] = count_nothing) -> None:
        size = path.stat().st_size
        options: dict[str, Any] = {"mode": "create", "callback": _Counting(count)}
        if "s3" in self._protocols:
            options |= {"chunksize": part_bytes(size), "max_concurrency": _AT_ONCE}
        with self._doing("uploaded", key):
            try:
                self._asked(lambda: self._file_system.put_file(str(path), self._path(key), **options), size)
            except Exception as error:
                if is_transient(error) or self.info(key) is None:
                    raise

    @override
    def remove(self, key: str) -> None:
        with self._doing("deleted", key):
            self._unless_missing(lambda: self._file_system.rm_file(self._path(key)))

    @override
    def chunks(self, key: str, size: int) -> Iterator[bytes]:
        pending: deque[Future[bytes]] = deque()
        pool = ThreadPoolExecutor(_AT_ONCE if self._is_async else 1, thread_name_prefix="archive")
        try:
            for begin in range(0, size, _RANGE):
                pending.append(pool.submit(self._range, key, begin, min(begin + _RANGE, size)))
                if len(pending) == _AT_ONCE:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    @override
    def clear(self, is_litter: Callable[[str], bool]) -> None:
        if "s3" not in self._protocols:
            return  # Google deletes unfinished uploads itself, after a week
        bucket, prefix, _ = self._file_system.split_path(self._path(""))
        inside = f"{prefix}/" if prefix else ""
        with self._doing("cleared of unfinished uploads", ""):
            for key, upload in list(self._unfinished(bucket, inside)):
                if is_litter(key.removeprefix(inside)):
                    self._unless_missing(partial(self._file_system.abort_mpu, bucket, key, upload))

    def _unfinished(self, bucket: str, prefix: str) -> Iterator[tuple[str, str]]:
        asked = partial(self._file_system.call_s3, "list_multipart_uploads", Bucket=bucket, Prefix=prefix)
        page = self._asked(asked)
        while True:
            yield from ((upload["Key"], upload["UploadId"]) for upload in page.get("Uploads", []))
            if not page.get("IsTruncated"):
                return
            marker = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
            page = self._asked(partial(asked, **marker))

    def _range(self, key: str, begin: int, end: int) -> bytes:
        with self._doing("read", key):
            return bytes(self._asked(lambda: self._file_system.cat_file(self._path(key), start=begin, end=end)))

    def _unless_missing(self, call: Callable[[], T]) -> T | None:
        try:
            return self._asked(call)
        except FileNotFoundError as error:
            if _is_without_bucket(error):
                raise
            return None

    def _asked(self, call: Callable[[], T], num_bytes: int = 0) -> T:
        self._file_system.invalidate_cache()  # a cache misses the changes of other processes
        policy = replace(self._policy, deadline=self._policy.deadline + num_bytes / _SLOWEST)
        return retry(lambda left: within(left, call), policy, _may_pass)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}" if key else self._root

    @contextmanager
    def _doing(self, what: str, key: str) -> Iterator[None]:
        try:
            yield
        except StateError:
            raise
        except Exception as error:  # each file system has its own errors
            reason = " ".join(self._mask(str(error) or type(error).__name__).split())
            remedy = "check the archive's URL, your access to it and the network"
            msg = f"{self.name(key)} could not be {what} ({reason}): {remedy}"
            raise StateError(msg) from error


def _may_pass(error: BaseException) -> bool:
    return is_transient(error) or http_status(error) == _CONFLICT


def _is_without_bucket(error: FileNotFoundError) -> bool:
    response = getattr(error.__cause__, "response", None)
    return isinstance(response, dict) and response.get("Error", {}).get("Code") == "NoSuchBucket"
