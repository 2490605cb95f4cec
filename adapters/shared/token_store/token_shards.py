"""The shards of one dataset in a folder of tokens."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from dataclasses import dataclass, replace
from functools import partial
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, final

import numpy as np
from blake3 import blake3

from holdfast.adapters.shared.files.file_lock import lock
from holdfast.adapters.shared.token_store.checked_ids import CheckedFile, CheckedIds, block_digests
from holdfast.adapters.shared.token_store.derived_arrays import DerivedArrayStore, LruCache
from holdfast.adapters.shared.token_store.folder_operations import CorruptTokensError, reading, safe_name
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
from holdfast.domain.errors import DataError, StateError, TokensLost
from holdfast.ports.token_source import Tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from holdfast.adapters.shared.encryption.encrypted_file import EncryptedFile
    from holdfast.adapters.shared.files.file_operations import FileOperations
    from holdfast.adapters.shared.token_store.derived_arrays import Arrays
    from holdfast.adapters.shared.token_store.token_encryption import ShardCipher, ShardEncryption
    from holdfast.adapters.shared.token_store.token_folder import TokenFolder
    from holdfast.ports.token_source import TokenShard

_REMEDY = "run the same command to tokenize it again"


@dataclass(slots=True)
class _Opened:
    tokens: Tokens
    fingerprint: str
    last_used: float


@final
class StoredShards:
    """Lists and opens the shards below ``place``, a folder in ``folder``; ``max_open`` of them stay open and pinned.

    An open shard needs one file descriptor, derived arrays need none. With ``encryption`` all of them are encrypted.
    A missing or damaged shard raises ``error``, and ``remedy`` ends its sentence.
    """

    def __init__(
        self,
        folder: TokenFolder,
        place: Path,
        *,
        verify: bool,
        max_open: int,
        remedy: str = _REMEDY,
        error: type[DataError] = TokensLost,
        encryption: ShardEncryption | None = None,
    ) -> None:
        self.place = place
        self._folder = folder
        self._verify = verify
        self._remedy = remedy
        self._error = error
        self._encryption = encryption
        self._recent: LruCache[str, _Opened] = LruCache(max_open)
        self._kept = DerivedArrayStore(folder, verify=verify, max_open=max_open)
        self._manifests: dict[str, ShardManifest] = {}
        self._blocks: dict[str, bytes] = {}
        self._lock = Lock()

    def path_of(self, name: str) -> Path:
        """Return the folder of the shard ``name``, which may not exist."""
        return self.place / safe_name(name)

    def read(self, path: Path) -> ShardManifest:
        """Return the manifest of the shard in the folder ``path``; raises the errors of ``read_manifest``."""
        try:
            return read_manifest(self._folder.files, path, self._encryption)
        except CorruptTokensError:  # if only the reading was wrong, another is right
            return read_manifest(self._folder.files, path, self._encryption)

    def scan(self) -> Mapping[str, ShardManifest]:
        """Return the complete shards by name, sorted; each manifest is read once, and its ``meta`` is left out."""
        with self._lock, reading("the list of shards", self.place):
            is_there = self._folder.check() and self.place.is_dir()
            found = {path.name for path in self.place.iterdir()} if is_there else set()
            for folder in self._manifests.keys() - found:
                del self._manifests[folder]
            for folder in found - self._manifests.keys():
                with contextlib.suppress(CorruptTokensError, FileNotFoundError, NotADirectoryError):
                    manifest = self.read(self.place / folder)
                    if safe_name(manifest.name) == folder:
                        self._manifests[folder] = replace(manifest, meta={})
            return {
                manifest.name: manifest for manifest in sorted(self._manifests.values(), key=lambda each: each.name)
            }

    def forget(self, name: str) -> None:
        """Close a shard that is about to be deleted or replaced; arrays returned earlier stay readable."""
        self._recent.drop(name)
        with self._lock:
            self._manifests.pop(safe_name(name), None)
            self._blocks.pop(name, None)

    def last_used(self, name: str) -> float:
        """Return the time of the last use of the shard here, in seconds since 1970; 0 if it is not open."""
        opened = self._recent.peek(name)
        return opened.last_used if opened is not None else 0

    def meta(self, shard: TokenShard) -> Mapping[str, object]:
        """Return the ``meta`` stored with ``shard``."""
        return self._manifest(shard).meta

    def open(self, shard: TokenShard) -> Tokens:
        """Return the tokens of ``shard``; a damaged one is quarantined and raises ``DataError``."""
        opened = self._recent.get(shard.name)
        if opened is None or opened.fingerprint != shard.fingerprint:
            opened = _Opened(self._map(shard), shard.fingerprint, 0)
            self._recent.put(shard.name, opened)
        opened.last_used = time.time()
        return opened.tokens

    def derive(self, shard: TokenShard, key: str, make: Callable[[Tokens], Arrays]) -> Arrays:
        """Return the arrays that ``make`` computes from the tokens of ``shard``, stored beside it under ``key``."""
        cipher = None if self._encryption is None else self._manifest(shard).cipher
        what = f"{shard.fingerprint} {key}"
        name = safe_name(what) if cipher is None else cipher.hidden(what)
        path = self.path_of(shard.name) / f"derived-{name}.safetensors"
        return self._kept.get(path, lambda: make(self.open(shard)), cipher)

    def set_aside(self, name: str) -> Path | None:
        """Move a damaged shard into quarantine and return its new path; None if it no longer exists."""
        self.forget(name)
        self._folder.prepare()
        return self._folder.set_aside(self.path_of(name))

    def _map(self, shard: TokenShard) -> Tokens:
        path = self.path_of(shard.name)
        manifest = self._manifest(shard)
        with self._damage_set_aside(shard.name), reading(f"the shard {shard.name!r}", path):
            check_sizes(path, manifest)
            try:
                tokens = open_tokens(path, manifest, partial(self._changed, shard.name), verify=self._verify)
            except FileNotFoundError as error:
                raise self._gone(shard) from error
            if self._verify:
                if shard.name not in self._blocks:
                    self._blocks[shard.name] = check_digests(self._folder.files, path, manifest)
                if isinstance(tokens.ids, CheckedIds):
                    tokens.ids.file.blocks = self._blocks[shard.name]
        with contextlib.suppress(OSError):  # only the order of eviction suffers
            os.utime(path / MANIFEST)
        return tokens

    def _manifest(self, shard: TokenShard) -> ShardManifest:
        path = self.path_of(shard.name)
        with self._damage_set_aside(shard.name), reading(f"the shard {shard.name!r}", path):
            try:
                manifest = self.read(path)
            except FileNotFoundError as error:
                raise self._gone(shard) from error
        if manifest.shard != shard:
            msg = f"the shard {shard.name!r} in {path} has changed since it was listed: {self._remedy}"
            raise self._error(msg)
        return manifest

    @contextlib.contextmanager
    def _damage_set_aside(self, name: str) -> Iterator[None]:
        try:
            yield
        except CorruptTokensError as damage:
            path = self.path_of(name)
            with reading(f"the damaged shard {name!r}", path):
                aside = self.set_aside(name)
            where = f"was moved to {aside}" if aside else "is gone"
            msg = f"the shard {name!r} in {path} is damaged ({damage}) and {where}: {self._remedy}"
            raise self._error(msg) from damage

    def _changed(self, name: str, clause: str) -> Exception:
        """Set aside an open shard that is not what was verified, and return the error to raise."""
        try:
            with self._damage_set_aside(name):
                raise CorruptTokensError(clause)
        except (DataError, StateError) as error:
            return error

    def _gone(self, shard: TokenShard) -> DataError:
        self.forget(shard.name)
        return self._error(f"the shard {shard.name!r} is no longer in {self.place}: {self._remedy}")


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
