"""Opens and verifies stored shards."""

from __future__ import annotations

import os
import weakref
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from blake3 import blake3

from holdfast.adapters.shared.files.file_lock import lock
from holdfast.adapters.shared.token_store.checked_ids import CheckedFile, CheckedIds, block_digests
from holdfast.adapters.shared.token_store.folder_operations import CorruptTokensError, reading
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
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from holdfast.adapters.shared.encryption.encrypted_file import EncryptedFile
    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.adapters.shared.token_store.token_encryption import ShardCipher, ShardEncryption

_CHUNK = 1 << 20
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in place of a file is not waited for


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


def check_digests(files: FileOperations, folder: Path, manifest: ShardManifest) -> bytes:
    """Return the ``block_digests`` of the ids, after hashing what ``open_tokens`` did not; about 1 GB/s.

    These are the ids, and all files of an encrypted shard. Raises ``CorruptTokensError`` unless each has the bytes that
    were written; a file that has not is read once more. The files are not memory-mapped, so a bad sector raises
    ``OSError`` and does not end the process.
    """
    blocks = b""
    for name in manifest.digests if manifest.cipher is not None else (TOKENS,):
        digest = manifest.digests[name]
        for _ in range(2):
            found, blocks_found = _digest_of(files, folder / name, manifest)
            if found == digest:
                break
        else:
            raise CorruptTokensError(_differs(name))
        blocks = blocks_found if name == TOKENS else blocks
    return blocks


def _digest_of(files: FileOperations, path: Path, manifest: ShardManifest) -> tuple[str, bytes]:
    """Return the hash of a file as it was before it was encrypted, and those of its blocks."""
    hasher, blocks = blake3(), []
    with files.open_file(path) as file:
        for chunk in _plain(file) if manifest.cipher is None else _decrypted(file, path.name, manifest.cipher):
            hasher.update(chunk)
            if path.name == TOKENS and manifest.cipher is None:
                blocks.append(block_digests(chunk))
    return hasher.hexdigest(), b"".join(blocks)


def _differs(name: str) -> str:
    return f"{name} does not have the bytes that were written"


def _plain(file: FileIO) -> Iterator[Buffer]:
    """Yield chunks of whole blocks, but for the last."""
    buffer = memoryview(bytearray(_CHUNK))
    filled = 0
    while count := file.readinto(buffer[filled:]):
        filled += count
        if filled == _CHUNK:
            yield buffer
            filled = 0
    if filled:
        yield buffer[:filled]


def _decrypted(file: FileIO, name: str, cipher: ShardCipher) -> Iterator[Buffer]:
    encrypted = cipher.open(name, file)
    for offset in range(0, encrypted.size, _CHUNK):
        yield cipher.read(encrypted, offset, _CHUNK)


def open_tokens(folder: Path, manifest: ShardManifest, fail: Callable[[str], Exception], *, verify: bool) -> Tokens:
    """Return the shard's tokens, whose ids pin it: no other process evicts it while they exist.

    The ids are read, or decrypted, when they are used, and ``fail`` returns the error to raise if they are not what was
    verified; the other arrays are read here, and with ``verify`` compared with their hashes. Raises
    ``FileNotFoundError`` for a shard that is deleted or being deleted, and ``CorruptTokensError``.
    """
    if manifest.cipher is not None:
        return _encrypted_tokens(folder, manifest, manifest.cipher)
    pinned = FileIO(folder / TOKENS, "rb", opener=lambda path, _: _open_pinned(path))
    size = manifest.num_tokens * np.dtype(manifest.dtype).itemsize
    ids = CheckedIds(CheckedFile(pinned, (0, size), None, fail), np.dtype(manifest.dtype))
    offsets = np.frombuffer(_read_small(folder / OFFSETS, manifest, verify=verify), np.int64)
    hashes = np.frombuffer(_read_small(folder / HASHES, manifest, verify=verify), np.uint64)
    if not manifest.has_mask:
        return Tokens(ids, offsets, hashes)
    bits = np.frombuffer(_read_small(folder / LOSS_MASK, manifest, verify=verify), np.uint8)
    return Tokens(ids, offsets, hashes, PackedLossMask(bits, manifest.num_tokens))


def _read_small(path: Path, manifest: ShardManifest, *, verify: bool) -> bytes:
    for _ in range(2):
        data = _whole(path)
        if not verify or blake3(data).hexdigest() == manifest.digests[path.name]:
            return data
    raise CorruptTokensError(_differs(path.name))


def lock_to_evict(folder: Path) -> int | None:
    """Return a descriptor that prevents opening the shard until it is closed; None if a process uses the shard."""
    try:
        return _locked(folder / TOKENS, is_shared=False)
    except FileNotFoundError:
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
    try:
        return cipher.decrypt(path.name, _whole(path))
    except CorruptTokensError:  # if only the reading was wrong, another is right
        return cipher.decrypt(path.name, _whole(path))


def _whole(path: Path) -> bytes:
    with FileIO(path, "rb", opener=lambda name, _: os.open(name, _FLAGS)) as file:
        return file.readall()


def _open_pinned(path: Path | str) -> int:
    if (descriptor := _locked(Path(path), is_shared=True)) is None:
        raise FileNotFoundError(path)
    return descriptor


def _locked(path: Path, *, is_shared: bool) -> int | None:
    """Return a descriptor that locks the file until it is closed; None if another one does, or it was moved away."""
    try:
        descriptor = lock(os.open(path, _FLAGS), is_shared=is_shared)
    except BlockingIOError:
        return None
    try:
        if os.path.samestat(os.fstat(descriptor), path.lstat()):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


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
