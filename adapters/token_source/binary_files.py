"""Flat files of token ids, ``.npy`` and ``.bin``, read in place."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.shared.token_store.checked_ids import CheckedFile, CheckedIds, block_digests, read_twice
from holdfast.adapters.token_source.documents import DocumentScanner, check_ids, narrowest
from holdfast.adapters.token_source.shards import FileShard, fingerprint_of, shard_name, stamp_of
from holdfast.domain.errors import DataError, StateError
from holdfast.ports.token_source import Tokens, TokenShard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.shared.token_store.derived_arrays import Arrays, DerivedArrayStore
    from holdfast.adapters.token_source.raw_ids import RawForm
    from holdfast.adapters.token_source.shards import ReadOptions, TokenFile

_CHUNK = 1 << 22
_INDEX = "documents.safetensors"
_AS_THEY_ARE = {np.dtype("<u2"): "<u2", np.dtype("<u4"): "<u4", np.dtype("<i2"): "<u2", np.dtype("<i4"): "<u4"}


def binary_shards(
    file: TokenFile, form: RawForm | None, options: ReadOptions, derived: DerivedArrayStore, folder: Path
) -> Iterator[FileShard]:
    """Yield the shards of ``file``, cut between documents; its document boundaries are cached in ``folder``.

    ``form`` tells how ids without a header of numpy are stored. Raises ``DataError`` if the file cannot be read or
    changes while it is read.
    """
    flat = find_flat(file, form)
    index = derived.get(folder / _INDEX, lambda: _scan(file, flat, options))
    offsets, content = index["offsets"], index["content"].tobytes().hex()
    if offsets[-1] != flat.num_ids:
        raise DataError(_changing(file))
    for number, (first, last) in enumerate(_cuts(offsets, options.shard_tokens)):
        begin, end = int(offsets[first]), int(offsets[last])
        fingerprint = fingerprint_of(content, options.end_of_text, begin, end)
        shard = TokenShard(shard_name(file, number), end - begin, last - first, fingerprint)
        opened = partial(_open, file, flat, options, derived, folder, (first, last))
        yield FileShard(shard, opened, file.name, file.place)


@dataclass(frozen=True, slots=True)
class FlatIds:
    """The place of ids in a file: ``num_ids`` of ``dtype`` from the byte ``begin`` on."""

    dtype: np.dtype[Any]
    begin: int
    num_ids: int


def find_flat(file: TokenFile, form: RawForm | None) -> FlatIds:
    """Return the place of the ids of ``file``. Raises ``DataError`` if it cannot be read or holds anything else."""
    try:
        if form is not None:
            num_bytes = file.path.stat().st_size - form.header
            return _as_it_is(form.dtype, form.header, num_bytes // form.dtype.itemsize)
        ids, again = (np.load(file.path, mmap_mode="r", allow_pickle=False) for _ in range(2))
        if (ids.dtype, ids.shape) != (again.dtype, again.shape):
            raise DataError(_changing(file))
    except (OSError, ValueError, EOFError) as error:
        msg = f"{file.name} cannot be read as an array of token ids ({error}): check the file"
        raise DataError(msg) from error
    if ids.ndim != 1 or ids.dtype.kind not in "ui":
        msg = f"{file.name} holds {ids.dtype} of shape {ids.shape} instead of one row of integers: save the ids flat"
        raise DataError(msg)
    return _as_it_is(ids.dtype, ids.offset, len(ids))


def _as_it_is(dtype: np.dtype[Any], begin: int, num_ids: int) -> FlatIds:
    same = _AS_THEY_ARE.get(dtype)
    return FlatIds(np.dtype(same) if same else dtype, begin, num_ids)


def _scan(file: TokenFile, flat: FlatIds, options: ReadOptions) -> Arrays:
    """Return the documents of the ids, and the hashes of their blocks; what is read twice must be the same."""
    scanner, blocks, width = DocumentScanner(options.end_of_text), [], flat.dtype.itemsize
    try:
        with file.path.open("rb", buffering=0) as opened:
            for first in range(0, flat.num_ids, _CHUNK):
                place = flat.begin + first * width, min(_CHUNK, flat.num_ids - first) * width
                data = read_twice(opened.fileno(), *place)
                if len(data) != place[1]:
                    raise DataError(_changing(file))
                chunk = np.frombuffer(data, flat.dtype)
                check_ids(chunk, options.vocabulary_size, partial(_place, file, first))
                scanner.feed(chunk)
                blocks.append(block_digests(data))
        if stamp_of(file.path) != file.stamp:
            raise DataError(_changing(file))
    except OSError as error:
        msg = f"{file.name} cannot be read as an array of token ids ({error}): check the file"
        raise DataError(msg) from error
    return {**scanner.finish(), "blocks": np.frombuffer(b"".join(blocks), np.uint8)}


def _changing(file: TokenFile) -> str:
    return f"{file.name} changed while it was read: run the same command once no process writes to it"


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
    flat: FlatIds,
    options: ReadOptions,
    derived: DerivedArrayStore,
    folder: Path,
    documents: tuple[int, int],
) -> Tokens:
    first, last = documents
    if (clause := _difference(file) if file.path.exists() else "it is gone") is not None:
        raise _changed(file, clause)
    index = derived.get(folder / _INDEX, lambda: _scan(file, flat, options))
    offsets, hashes = index["offsets"][first : last + 1], index["hashes"][first:last]
    try:
        opened = FileIO(file.path)
    except OSError as error:
        raise _changed(file, str(error)) from error
    span = flat.begin, flat.num_ids * flat.dtype.itemsize
    blocks = index["blocks"].tobytes() if "blocks" in index else None
    whole = CheckedFile(opened, span, blocks, partial(_changed, file), partial(_difference, file))
    part = CheckedIds(whole, flat.dtype, int(offsets[0]), int(offsets[-1] - offsets[0]))
    if part.dtype not in {np.dtype(np.uint16), np.dtype(np.uint32)}:
        wide = part
        path = folder / f"ids-{first}.safetensors"
        narrowed = derived.get(path, lambda: {"ids": wide[:].astype(narrowest(options.vocabulary_size))})
        return Tokens(narrowed["ids"], offsets - offsets[0], hashes)
    return Tokens(part, offsets - offsets[0], hashes)


def _difference(file: TokenFile) -> str | None:
    """Return a clause if another file is in the place of ``file``; one that was opened and deleted stays readable."""
    with suppress(FileNotFoundError):
        return None if stamp_of(file.path) == file.stamp else "its size or its time is another"
    return None


def _changed(file: TokenFile, clause: str) -> StateError:
    return StateError(
        f"{file.name} was changed since this run began ({clause}): restore it, or start again to read the new one"
    )
