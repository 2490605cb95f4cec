"""Writes a shard piece by piece, then its manifest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, final

import numpy as np
from blake3 import blake3

from holdfast.adapters.shared.token_store.folder_operations import bytes_of, storing
from holdfast.adapters.shared.token_store.token_manifest import DTYPES, HASHES, MANIFEST, OFFSETS, TOKENS, ShardManifest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.shared.token_store.folder_operations import TokenFileOperations
    from holdfast.adapters.shared.token_store.token_encryption import ShardCipher
    from holdfast.ports.token_source import Tokens

_PIECE = 1 << 22
assert sys.byteorder == "little", "the files of tokens are little endian, and written as they lie in memory"


@final
class ShardWriter:
    """Writes parts into a new folder, with a few MiB in memory; all is durable except the folder's own name.

    After each part ``grown`` receives the number of bytes written so far; it may raise to stop the writing. With
    ``cipher`` only encrypted bytes reach the disk.
    """

    def __init__(
        self,
        files: TokenFileOperations,
        folder: Path,
        grown: Callable[[int], object],
        cipher: ShardCipher | None = None,
    ) -> None:
        self._files = files
        self._folder = folder
        self._grown = grown
        self._cipher = cipher
        self._dtype: np.dtype[np.unsignedinteger] | None = None

    def write(self, name: str, parts: Iterable[Tokens], meta: Mapping[str, object]) -> ShardManifest:
        """Write the shard ``name``; ``meta`` is read after the last part.

        Raises ``StateError`` if the disk reports an error, and the exceptions of the parts.
        """
        what = f"the shard {name!r}"
        with storing(what, self._folder):
            tokens, offsets, hashes = (self._column(name) for name in (TOKENS, OFFSETS, HASHES))
            offsets.add(np.zeros(1, np.int64))
        num_tokens = num_documents = 0
        for part in parts:
            with storing(what, self._folder):
                tokens.add(self._checked(part.ids[part.offsets[0] : part.offsets[-1]]))
                offsets.add((part.offsets[1:] - part.offsets[0] + num_tokens).astype(np.int64))
                hashes.add(part.hashes.astype(np.uint64, casting="safe", copy=False))
            num_tokens += int(part.offsets[-1] - part.offsets[0])
            num_documents += len(part.hashes)
            self._grown(tokens.size + offsets.size + hashes.size)
        with storing(what, self._folder):
            digests = {column.path.name: column.finish() for column in (tokens, offsets, hashes)}
            dtype = str(self._dtype or DTYPES[0])
            manifest = ShardManifest(name, dtype, num_tokens, num_documents, digests, meta, self._cipher)
            self._files.write_file(self._folder / MANIFEST, manifest.to_bytes())
            self._files.sync_file(self._folder / MANIFEST)
            self._files.sync_folder(self._folder)
        return manifest

    def _column(self, name: str) -> _Column:
        return _Column(self._files, self._folder / name, self._cipher)

    def _checked(self, ids: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
        if self._dtype is None:
            assert ids.dtype.name in DTYPES, f"token ids are uint16 or uint32, not {ids.dtype}"
            self._dtype = np.dtype(ids.dtype.name)
        return ids.astype(self._dtype, casting="safe", copy=False)


@final
class _Column:
    """One file, hashed, and encrypted by ``cipher``, while it is written."""

    def __init__(self, files: TokenFileOperations, path: Path, cipher: ShardCipher | None) -> None:
        self.path = path
        self.size = 0
        self._files = files
        self._hasher = blake3()
        self._buffer = bytearray()
        self._encryptor = cipher and cipher.encryptor(path.name)
        files.write_file(path, b"")

    def add(self, values: NDArray[np.generic]) -> None:
        data = bytes_of(values)
        self.size += len(data)
        if len(data) >= _PIECE:
            self._flush()
            self._write(data)
            return
        self._buffer += data
        if len(self._buffer) >= _PIECE:
            self._flush()

    def finish(self) -> str:
        self._flush()
        if self._encryptor is not None:
            self._files.append_file(self.path, self._encryptor.finish())
        self._files.sync_file(self.path)
        return str(self._hasher.hexdigest())

    def _flush(self) -> None:
        if self._buffer:
            self._write(memoryview(self._buffer))
            self._buffer = bytearray()

    def _write(self, data: memoryview) -> None:
        self._hasher.update(data)
        self._files.append_file(self.path, data if self._encryptor is None else self._encryptor.add(data))
