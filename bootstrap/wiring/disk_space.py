"""Measures the limits of this machine: free disk space and open files."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
from typing import TYPE_CHECKING

from holdfast.adapters.shared.token_store.token_folder import MARKER
from holdfast.configs.sections.data import MixtureDataSettings

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.configs.sections.data import FeedSettings


_KEPT_DESCRIPTORS = 192  # for the shards of the rows that are read at a time, and all else


def nearest_folder(path: Path) -> Path:
    """Return ``path``, or the nearest folder above it that exists."""
    return next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())


def free_bytes(path: Path) -> int:
    """Return the free space of the file system of ``path``, which need not exist yet."""
    return shutil.disk_usage(nearest_folder(path)).free


def cache_room(folder: Path) -> int:
    """Return the largest size in bytes of a cache at ``folder``: nine tenths of the free space and its own size."""
    return (free_bytes(folder) + _bytes_of_cache(folder)) * 9 // 10


def _bytes_of_cache(folder: Path) -> int:
    if not (folder / MARKER).exists():
        return 0  # a folder that is not a cache, of any size
    num_bytes = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # another process makes room
                num_bytes += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118  a million paths
    return num_bytes


def open_shards(data: FeedSettings) -> int:
    """Return the number of shards of one source that may stay open; each takes a file descriptor of the process."""
    sources = len(data.giving) if isinstance(data, MixtureDataSettings) else 1
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(8, min(1024, (limit - _KEPT_DESCRIPTORS) // 2 // sources))
