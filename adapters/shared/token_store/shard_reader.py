"""Opens and verifies stored shards."""

from __future__ import annotations

import fcntl
import mmap
import os
import weakref
from errno import EWOULDBLOCK
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from blake3 import blake3

from holdfast.adapters.shared.token_store.folder_operations import CorruptTokensError, reading
from holdfast.adapters.shared.token_store.mmap_file import map_file
from holdfast.adapters.shared.token_store.token_manifest import (
    HASHES,
    LOSS_MASK,
    MANIFEST,
    OFFSETS,
    TOKENS,
    ShardManifest,
    name_in,
)
from holdfast.domain.data.loss_mask import PackedLossMask
from holdfast.ports.token_source import Tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from holdfast.adapters.shared.encryption.encrypted_file import EncryptedFile
    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.adapters.shared.token_store.token_encryption import ShardCipher, ShardEncryption

_CHUNK = 1 << 20


def read_manifest(files: FileOperations, folder: Path, encryption: ShardEncryption | None) -> ShardManifest:
    """Return the manifest of the shard in ``folder``, without reading the other files.

    Raises ``FileNotFoundError`` if there is none, ``CorruptTokensError``, ``DataError`` for a later version,
    ``StateError`` without the key, ``OSError``.
    """
    with files.open_file(folder / MANIFEST) as file:
        return ShardManifest.from_bytes(file.read(), encryption)


def read_name(files: FileOperations, folder: Path) -> str:
    """Return the name of the shard in ``folder``, without a key; raises the errors of ``read_manifest``."""
    with files.open_file(folder / MANIFEST) as file:
        return name_in(file.read())


def check_sizes(folder: Path, manifest: ShardManifest) -> None:
    """Raise ``CorruptTokensError`` unless each file of the shard has the size that was written."""
    for name, size in manifest.sizes.items():
        try:
            found = (folder / name).lstat().st_size
        except FileNotFoundError as error:
            msg = f"{name} is missing"
            raise CorruptTokensError(msg) from error
        if found != size:
            msg = f"{name} has {found} bytes instead of {size}"
            raise CorruptTokensError(msg)


def check_digests(files: FileOperations, folder: Path, manifest: ShardManifest) -> None:
    """Raise ``CorruptTokensError`` unless each file of the shard has the bytes that were written; about 1-2 GB/s.

    The files are not memory-mapped, so a bad sector raises ``OSError`` and does not end the process.
    """
    for name, digest in manifest.digests.items():
        hasher = blake3()
        with files.open_file(folder / name) as file:
            for chunk in _plain(file) if manifest.cipher is None else _decrypted(file, name, manifest.cipher):
                hasher.update(chunk)
        if hasher.hexdigest() != digest:
            msg = f"{name} does not have the bytes that were written"
            raise CorruptTokensError(msg)


def _plain(file: FileIO) -> Iterator[Buffer]:
    buffer = memoryview(bytearray(_CHUNK))
    while count := file.readinto(buffer):
        yield buffer[:count]


def _decrypted(file: FileIO, name: str, cipher: ShardCipher) -> Iterator[Buffer]:
    encrypted = cipher.open(name, file)
    for offset in range(0, encrypted.size, _CHUNK):
        yield cipher.read(encrypted, offset, _CHUNK)


def map_tokens(folder: Path, manifest: ShardManifest) -> Tokens:
    """Return the shard's tokens, whose ids pin it: no other process evicts it while they exist.

    The arrays are memory maps. The ids of an encrypted shard are decrypted when they are read, its other arrays here.
    Raises ``FileNotFoundError`` for a shard that is deleted or being deleted.
    """
    if manifest.cipher is not None:
        return _encrypted_tokens(folder, manifest, manifest.cipher)
    ids = _map_pinned(folder / TOKENS, manifest)
    offsets = map_array(folder / OFFSETS, np.dtype(np.int64))
    hashes = map_array(folder / HASHES, np.dtype(np.uint64))
    if not manifest.has_mask:
        return Tokens(ids, offsets, hashes)
    bits = map_array(folder / LOSS_MASK, np.dtype(np.uint8))
    return Tokens(ids, offsets, hashes, PackedLossMask(bits, manifest.num_tokens))


def map_array(path: Path, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the flat, little-endian file as a read-only array of ``dtype``, (num_elements,)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        return np.frombuffer(map_file(descriptor), dtype)
    finally:
        os.close(descriptor)


def lock_to_evict(folder: Path) -> int | None:
    """Return a descriptor that prevents opening the shard until it is closed; None if a process uses the shard."""
    try:
        descriptor = os.open(folder / TOKENS, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    if _lock(descriptor, folder / TOKENS, fcntl.LOCK_EX):
        return descriptor
    os.close(descriptor)
    return None


def _encrypted_tokens(folder: Path, manifest: ShardManifest, cipher: ShardCipher) -> Tokens:
    pinned = FileIO(folder / TOKENS, "rb", opener=lambda path, _: _open_pinned(path))
    ids = EncryptedTokenIds(cipher.open(TOKENS, pinned), np.dtype(manifest.dtype), folder)
    offsets = np.frombuffer(_decrypted_file(folder / OFFSETS, cipher), np.int64)
    hashes = np.frombuffer(_decrypted_file(folder / HASHES, cipher), np.uint64)
    if not manifest.has_mask:
        return Tokens(ids, offsets, hashes)
    bits = np.frombuffer(_decrypted_file(folder / LOSS_MASK, cipher), np.uint8)
    return Tokens(ids, offsets, hashes, PackedLossMask(bits, manifest.num_tokens))


def _decrypted_file(path: Path, cipher: ShardCipher) -> bytes:
    with FileIO(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW)) as file:
        return cipher.decrypt(path.name, file.readall())


def _open_pinned(path: Path | str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    if _lock(descriptor, Path(path), fcntl.LOCK_SH):
        return descriptor
    os.close(descriptor)
    raise FileNotFoundError(path)


def _map_pinned(path: Path, manifest: ShardManifest) -> NDArray[np.unsignedinteger]:
    descriptor = _open_pinned(path)
    try:
        if os.fstat(descriptor).st_size == 0:
            return np.zeros(0, manifest.dtype)
        # this kind of map keeps a duplicate of the descriptor, and with it the lock, until its last part is released
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


@final
class EncryptedTokenIds:
    """The ids in an encrypted file: a slice is decrypted on access, into a new array.

    Usable from several threads; the file stays open until this object is garbage-collected. A slice raises
    ``StateError`` if the file has changed.
    """

    def __init__(self, file: EncryptedFile, dtype: np.dtype[np.unsignedinteger[Any]], folder: Path) -> None:
        self.dtype = dtype
        self._file = file
        self._folder = folder
        # not at exit: another thread may still read
        weakref.finalize(self, file.close).atexit = False

    def __len__(self) -> int:
        return self._file.size // self.dtype.itemsize

    def __getitem__(self, part: slice, /) -> NDArray[np.unsignedinteger[Any]]:
        start, stop, _ = part.indices(len(self))
        width = self.dtype.itemsize
        with reading("tokens", self._folder):
            return np.frombuffer(self._file.read(start * width, (stop - start) * width), self.dtype)
