"""Flat files of token ids, ``.npy`` and ``.bin``, memory-mapped in place."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.token_source.documents import DocumentScanner, check_ids, narrowest
from holdfast.adapters.token_source.shards import FileShard, fingerprint_of, shard_name, stamp_of
from holdfast.domain.errors import DataError
from holdfast.ports.token_source import Tokens, TokenShard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.shared.token_store.derived_arrays import Arrays, DerivedArrayStore
    from holdfast.adapters.token_source.raw_ids import RawForm
    from holdfast.adapters.token_source.shards import ReadOptions, TokenFile

_CHUNK = 1 << 22
_AS_THEY_ARE = {np.dtype("<u2"): "<u2", np.dtype("<u4"): "<u4", np.dtype("<i2"): "<u2", np.dtype("<i4"): "<u4"}


def binary_shards(
    file: TokenFile, form: RawForm | None, options: ReadOptions, derived: DerivedArrayStore, folder: Path
) -> Iterator[FileShard]:
    """Yield the shards of ``file``, cut between documents; its document boundaries are cached in ``folder``.

    ``form`` tells how ids without a header of numpy are stored. Raises ``DataError`` if the file cannot be read or
    changes while it is read.
    """
    ids = open_flat(file, form)
    index = derived.get(folder / "documents.safetensors", lambda: _scan(file, ids, options))
    offsets, content = index["offsets"], index["content"].tobytes().hex()
    if offsets[-1] != len(ids):
        msg = f"{file.name} changed while it was read: run the same command once no process writes to it"
        raise DataError(msg)
    for number, (first, last) in enumerate(_cuts(offsets, options.shard_tokens)):
        begin, end = int(offsets[first]), int(offsets[last])
        fingerprint = fingerprint_of(content, options.end_of_text, begin, end)
        shard = TokenShard(shard_name(file, number), end - begin, last - first, fingerprint)
        yield FileShard(
            shard, partial(_open, file, form, options, derived, folder, (first, last)), file.name, file.place
        )


def open_flat(file: TokenFile, form: RawForm | None) -> NDArray[np.integer[Any]]:
    """Return the ids of ``file``, of an integer dtype, (num_tokens,), as a memory map.

    Raises ``DataError`` if the file cannot be read or holds anything else.
    """
    try:
        ids = np.load(file.path, mmap_mode="r", allow_pickle=False) if form is None else _open_raw(file, form)
    except (OSError, ValueError, EOFError) as error:
        msg = f"{file.name} cannot be read as an array of token ids ({error}): check the file"
        raise DataError(msg) from error
    if ids.ndim != 1 or ids.dtype.kind not in "ui":
        msg = f"{file.name} holds {ids.dtype} of shape {ids.shape} instead of one row of integers: save the ids flat"
        raise DataError(msg)
    same = _AS_THEY_ARE.get(ids.dtype)
    flat: NDArray[np.integer[Any]] = ids.view(same) if same else ids
    return flat


def _open_raw(file: TokenFile, form: RawForm) -> NDArray[np.integer[Any]]:
    if file.path.stat().st_size == form.header:
        return np.zeros(0, form.dtype)
    return np.memmap(file.path, form.dtype, "r", form.header)


def _scan(file: TokenFile, ids: NDArray[np.integer[Any]], options: ReadOptions) -> Arrays:
    scanner = DocumentScanner(options.end_of_text)
    for begin in range(0, len(ids), _CHUNK):
        chunk = ids[begin : begin + _CHUNK]
        check_ids(chunk, options.vocabulary_size, partial(_place, file, begin))
        scanner.feed(chunk)
    return scanner.finish()


def _place(file: TokenFile, begin: int, number: int) -> str:
    return f"the id at position {begin + number} of {file.name}"


def _cuts(offsets: NDArray[np.int64], shard_tokens: int) -> Iterator[tuple[int, int]]:
    first, num_documents = 0, len(offsets) - 1
    while first < num_documents:
        fits = int(np.searchsorted(offsets, offsets[first] + shard_tokens, "right")) - 1
        last = max(fits, first + 1)
        yield first, last
        first = last


def _open(
    file: TokenFile,
    form: RawForm | None,
    options: ReadOptions,
    derived: DerivedArrayStore,
    folder: Path,
    documents: tuple[int, int],
) -> Tokens:
    first, last = documents
    if not file.path.exists() or stamp_of(file.path) != file.stamp:
        msg = f"{file.name} is gone or was changed since this run began: restore it, or start again to read the new one"
        raise DataError(msg)
    index = derived.get(folder / "documents.safetensors", lambda: _scan(file, open_flat(file, form), options))
    offsets, hashes = index["offsets"][first : last + 1], index["hashes"][first:last]
    ids = open_flat(file, form)
    part: NDArray[Any] = ids[offsets[0] : offsets[-1]]
    if part.dtype not in {np.dtype(np.uint16), np.dtype(np.uint32)}:
        narrow = part.astype
        path = folder / f"ids-{first}.safetensors"
        part = derived.get(path, lambda: {"ids": narrow(narrowest(options.vocabulary_size))})["ids"]
    return Tokens(part, offsets - offsets[0], hashes)
