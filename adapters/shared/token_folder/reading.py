"""Opening a stored shard, and finding out whether it is what was written."""

from __future__ import annotations

import fcntl
import mmap
import os
from errno import EWOULDBLOCK
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from adapters.shared.token_folder.manifest import HASHES, MANIFEST, OFFSETS, TOKENS, ShardManifest
from adapters.shared.token_folder.mapping import map_file
from adapters.shared.token_folder.operations import Damaged
from ports.token_source import Tokens

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from adapters.shared.file_operations import FileOperations

_CHUNK = 1 << 20


def read_manifest(files: FileOperations, folder: Path) -> ShardManifest:
    """Return the manifest of the shard in ``folder``, the other files unread.

    Raises ``FileNotFoundError`` where there is none, ``Damaged``, ``DataError`` for a later version, ``OSError``.
    """
    with files.open_file(folder / MANIFEST) as file:
        return ShardManifest.from_bytes(file.read())


def check_sizes(folder: Path, manifest: ShardManifest) -> None:
    """Raise ``Damaged`` unless each file of the shard has the size that was written."""
    for name, size in manifest.sizes.items():
        try:
            found = (folder / name).lstat().st_size
        except FileNotFoundError as error:
            msg = f"{name} is missing"
            raise Damaged(msg) from error
        if found != size:
            msg = f"{name} has {found} bytes instead of {size}"
            raise Damaged(msg)


def check_digests(files: FileOperations, folder: Path, manifest: ShardManifest) -> None:
    """Raise ``Damaged`` unless each file of the shard has the bytes that were written; about 1-2 GB/s.

    It reads instead of mapping: a sector that cannot be read is then an ``OSError``, not the end of the process.
    """
    buffer = memoryview(bytearray(_CHUNK))
    for name, digest in manifest.digests.items():
        hasher = blake3()
        with files.open_file(folder / name) as file:
            while count := file.readinto(buffer):
                hasher.update(buffer[:count])
        if hasher.hexdigest() != digest:
            msg = f"{name} does not have the bytes that were written"
            raise Damaged(msg)


def map_tokens(folder: Path, manifest: ShardManifest) -> Tokens:
    """Return the shard's tokens as memory maps, which pin it: no other process evicts it while they are held.

    Raises ``FileNotFoundError`` for a shard that is gone or on its way out.
    """
    ids = _map_pinned(folder / TOKENS, manifest)
    offsets = map_array(folder / OFFSETS, np.dtype(np.int64))
    hashes = map_array(folder / HASHES, np.dtype(np.uint64))
    return Tokens(ids, offsets, hashes)


def map_array(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the flat, little-endian file as a read-only array."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return np.frombuffer(map_file(descriptor), dtype)
    finally:
        os.close(descriptor)


def lock_to_evict(folder: Path) -> int | None:
    """Return a descriptor that keeps others from opening the shard until it is closed; None while somebody uses it."""
    try:
        descriptor = os.open(folder / TOKENS, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    if _lock(descriptor, folder / TOKENS, fcntl.LOCK_EX):
        return descriptor
    os.close(descriptor)
    return None


def _map_pinned(path: Path, manifest: ShardManifest) -> NDArray[np.unsignedinteger]:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if not _lock(descriptor, path, fcntl.LOCK_SH):
            raise FileNotFoundError(path)
        if os.fstat(descriptor).st_size == 0:
            return np.zeros(0, manifest.dtype)
        # this kind of map keeps a duplicate of the descriptor, and with it the lock, while anybody holds a part of it
        return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), manifest.dtype)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == EWOULDBLOCK:
            return False
        raise
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:  # it was moved away between opening and locking
        return False
