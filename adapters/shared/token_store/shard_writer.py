"""Writes a shard piece by piece, then its manifest."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, final

import numpy as np
from blake3 import blake3

from holdfast.adapters.shared.files.file_operations import create_file
from holdfast.adapters.shared.token_store.folder_operations import bytes_of, storing
from holdfast.adapters.shared.token_store.token_manifest import (
    DTYPES,
    HASHES,
    LOSS_MASK,
    MANIFEST,
    OFFSETS,
    TOKENS,
    ShardManifest,
)
from holdfast.domain.data.loss_mask import pack_mask

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
            columns = [self._column(name) for name in (TOKENS, OFFSETS, HASHES)]
            tokens, offsets, hashes = columns
            offsets.add(np.zeros(1, np.int64))
        mask = _MaskColumn(lambda: self._column(LOSS_MASK))
        num_tokens = num_documents = 0
        for part in parts:
            first, last = int(part.offsets[0]), int(part.offsets[-1])
            with storing(what, self._folder):
                tokens.add(self._checked(part.ids[first:last]))
                mask.add(None if part.loss_mask is None else part.loss_mask[first:last], last - first)
                offsets.add((part.offsets[1:] - first + num_tokens).astype(np.int64))
                hashes.add(part.hashes.astype(np.uint64, casting="safe", copy=False))
            num_tokens += last - first
            num_documents += len(part.hashes)
            self._grown(sum(column.size for column in [*columns, *mask.columns]))
        with storing(what, self._folder):
            digests = {column.path.name: column.finish() for column in [*columns, *mask.finish()]}
            dtype = str(self._dtype or DTYPES[0])
            manifest = ShardManifest(name, dtype, num_tokens, num_documents, digests, meta, self._cipher)
            create_file(self._files, self._folder / MANIFEST, manifest.to_bytes())
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
class _MaskColumn:
    """The bits of the loss mask, in a column that exists only once a part has had a mask."""

    def __init__(self, new_column: Callable[[], _Column]) -> None:
        self.columns: list[_Column] = []
        self._new_column = new_column
        self._num_before = 0  # tokens before the first mask, which are all trained on
        self._rest = np.zeros(0, np.bool_)  # less than a byte

    def add(self, mask: NDArray[np.bool_] | None, num_tokens: int) -> None:
        if mask is None and not self.columns:
            self._num_before += num_tokens
            return
        if not self.columns:
            self.columns.append(self._new_column())
            self._pack(np.ones(self._num_before, np.bool_))
        self._pack(np.ones(num_tokens, np.bool_) if mask is None else mask)

    def finish(self) -> list[_Column]:
        """Return the column, if there is one, with the last bits."""
        for column in self.columns:
            column.add(pack_mask(self._rest))
        return self.columns

    def _pack(self, mask: NDArray[np.bool_]) -> None:
        mask = np.concatenate([self._rest, mask])
        end = len(mask) // 8 * 8
        self.columns[0].add(pack_mask(mask[:end]))
        self._rest = mask[end:].copy()


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
