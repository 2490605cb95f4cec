"""Flat files of token ids, ``.npy`` and ``.bin``, memory-mapped in place."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.token_source.documents import DocumentScanner, check_ids, narrowest
from holdfast.adapters.token_source.shards import FileShard, fingerprint_of, shard_name, stamp_of
from holdfast.domain.errors import DataError
from holdfast.ports.token_source import Tokens, TokenShard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.shared.token_store.derived_arrays import Arrays, DerivedArrayStore
    from holdfast.adapters.token_source.shards import ReadOptions, TokenFile

_CHUNK = 1 << 22
_AS_THEY_ARE = {np.dtype("<u2"): "<u2", np.dtype("<u4"): "<u4", np.dtype("<i2"): "<u2", np.dtype("<i4"): "<u4"}
_RAW = {"uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}
# the headers of llm.c and modded-nanogpt: 256 int32, the first a magic number for the type of the ids
_HEADER_BYTES = 1024
_MAGIC = {20240520: "uint16", 20240801: "uint32"}


def binary_shards(
    file: TokenFile, options: ReadOptions, derived: DerivedArrayStore, folder: Path
) -> Iterator[FileShard]:
    """Yield the shards of ``file``, cut between documents; its document boundaries are cached in ``folder``.

    Raises ``DataError`` if the file cannot be read or changes while it is read.
    """
    ids = open_flat(file, options.dtype)
    index = derived.get(folder / "documents.safetensors", lambda: _scan(file, ids, options))
    offsets, content = index["offsets"], index["content"].tobytes().hex()
    if offsets[-1] != len(ids):
        msg = f"{file.name} changed while it was read: run the same command once no process writes to it"
        raise DataError(msg)
    for number, (first, last) in enumerate(_cuts(offsets, options.shard_tokens)):
        begin, end = int(offsets[first]), int(offsets[last])
        fingerprint = fingerprint_of(content, options.end_of_text, begin, end)
        shard = TokenShard(shard_name(file, number), end - begin, last - first, fingerprint)
        yield FileShard(shard, partial(_open, file, options, derived, folder, (first, last)), file.name, file.place)


def open_flat(file: TokenFile, dtype: str) -> NDArray[np.integer[Any]]:
    """Return the ids of ``file``, of an integer dtype, (num_tokens,), as a memory map.

    Raises ``DataError`` if the file cannot be read or holds anything else.
    """
    try:
        if file.path.suffix.lower() == ".npy":
            ids = np.load(file.path, mmap_mode="r", allow_pickle=False)
        else:
            ids = _open_raw(file, dtype)
    except (OSError, ValueError, EOFError) as error:
        msg = f"{file.name} cannot be read as an array of token ids ({error}): check the file"
        raise DataError(msg) from error
    if ids.ndim != 1 or ids.dtype.kind not in "ui":
        msg = f"{file.name} holds {ids.dtype} of shape {ids.shape} instead of one row of integers: save the ids flat"
        raise DataError(msg)
    same = _AS_THEY_ARE.get(ids.dtype)
    flat: NDArray[np.integer[Any]] = ids.view(same) if same else ids
    return flat


def _open_raw(file: TokenFile, dtype: str) -> NDArray[np.integer[Any]]:
    size = file.path.stat().st_size
    told, header = _told_by_header(file.path)
    kind = dtype if dtype != "auto" else told or _told_beside(file) or "uint16"
    if kind not in _RAW:
        msg = f"{file.name} is declared to hold {kind}, but ids must be one of {', '.join(_RAW)}: correct the dtype"
        raise DataError(msg)
    width = np.dtype(_RAW[kind]).itemsize
    if (size - header) % width:
        msg = (
            f"{file.name} has {size} bytes, which is not a multiple of the size of {kind}: check the file and the dtype"
        )
        raise DataError(msg)
    if size == header:
        return np.zeros(0, _RAW[kind])
    return np.memmap(file.path, _RAW[kind], "r", header)


def _told_by_header(path: Path) -> tuple[str | None, int]:
    with path.open("rb") as file:
        data = file.read(_HEADER_BYTES)
    if len(data) < _HEADER_BYTES:
        return None, 0
    magic, _, num_tokens = np.frombuffer(data, "<i4", 3).tolist()
    kind = _MAGIC.get(magic)
    if kind is None or path.stat().st_size != _HEADER_BYTES + num_tokens * np.dtype(kind).itemsize:
        return None, 0
    return kind, _HEADER_BYTES


def _told_beside(file: TokenFile) -> str | None:
    for path in (file.path.with_suffix(".json"), file.path.with_name(f"{file.path.name}.json")):
        if path.is_file():
            try:
                record: Mapping[str, Any] = json.loads(path.read_bytes())
                return str(record["dtype"])
            except (ValueError, KeyError, TypeError) as error:
                msg = f"{path} does not give the dtype of {file.name}: write {{'dtype': 'uint16'}} or the like there"
                raise DataError(msg) from error
    return None


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
    file: TokenFile, options: ReadOptions, derived: DerivedArrayStore, folder: Path, documents: tuple[int, int]
) -> Tokens:
    first, last = documents
    if not file.path.exists() or stamp_of(file.path) != file.stamp:
        msg = f"{file.name} is gone or was changed since this run began: restore it, or start again to read the new one"
        raise DataError(msg)
    index = derived.get(folder / "documents.safetensors", lambda: _scan(file, open_flat(file, options.dtype), options))
    offsets, hashes = index["offsets"][first : last + 1], index["hashes"][first:last]
    ids = open_flat(file, options.dtype)
    part: NDArray[Any] = ids[offsets[0] : offsets[-1]]
    if part.dtype not in {np.dtype(np.uint16), np.dtype(np.uint32)}:
        narrow = part.astype
        path = folder / f"ids-{first}.safetensors"
        part = derived.get(path, lambda: {"ids": narrow(narrowest(options.vocabulary_size))})["ids"]
    return Tokens(part, offsets - offsets[0], hashes)
