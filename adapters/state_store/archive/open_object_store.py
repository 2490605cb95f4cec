"""Opens the object store that an archive's URL names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from holdfast.adapters.state_store.archive.local_object_store import LocalObjectStore
from holdfast.adapters.state_store.archive.remote_object_store import RemoteObjectStore
from holdfast.domain.errors import ConfigurationError, StateError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.adapters.state_store.archive.object_store import ObjectStore
    from holdfast.domain.fault_tolerance.restart_policy import RetryPolicy

_EXCLUSIVE = {"s3", "s3a", "gs", "gcs", "file", "local", "memory"}
_BUCKETS = {"s3", "s3a", "gs", "gcs"}  # the part before the first slash is the bucket


def open_object_store(
    url: str,
    *,
    mask: Callable[[str], str],
    policy: RetryPolicy | None = None,
    files: FileOperations | None = None,
) -> ObjectStore:
    """Return the object store at ``url``: a folder, or a bucket that creates objects atomically (S3, Google).

    ``mask`` removes secrets from a text with URLs, ``policy`` limits the retries of transient errors, and ``files``
    writes into a folder. No request is sent. Raises ``ConfigurationError`` if a package is missing, the scheme is not
    supported, or the URL of a bucket contains keys, and ``StateError`` if the file system cannot be opened.
    """
    if url.partition("://")[0] in _BUCKETS and mask(url) != url:
        msg = f"the archive {mask(url)} has keys in its URL: put them into the environment or a credentials file"
        raise ConfigurationError(msg)
    kind = url.partition("://")[0] if "://" in url else "file"
    if kind not in _EXCLUSIVE:
        known = ", ".join(f"{name}://" for name in sorted(_EXCLUSIVE))
        msg = f"the archive {mask(url)} must be on a store with atomic create-if-absent: a folder, {known}"
        raise ConfigurationError(msg)
    try:
        file_system, root = url_to_fs(url)
    except ImportError as error:
        msg = f"the archive {mask(url)} needs a package that is not installed: {error}"
        raise ConfigurationError(msg) from error
    except Exception as error:  # each file system has its own errors
        msg = f"the archive {mask(url)} cannot be opened ({mask(str(error))}): check its URL"
        raise StateError(msg) from error
    if isinstance(file_system, LocalFileSystem):
        return LocalObjectStore(Path(root), files)
    return RemoteObjectStore(file_system, root, mask=mask, policy=policy)
