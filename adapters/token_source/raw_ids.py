"""The integer type of ids in files without a header of numpy, and where in the file they begin."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO
from typing import TYPE_CHECKING, Any

import numpy as np

from holdfast.adapters.shared.token_store.checked_ids import CheckedFile, CheckedIds, block_digests, read_twice
from holdfast.adapters.token_source.shards import (
    DocumentScanner,
    FileShard,
    check_ids,
    fingerprint_of,
    narrowest,
    shard_name,
    stamp_of,
)
from holdfast.domain.data.data_files import FIRST_RULES
from holdfast.domain.errors import DataError, StateError
from holdfast.ports.token_source import Tokens, TokenShard

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.shared.token_store.derived_arrays import Arrays, DerivedArrayStore
    from holdfast.adapters.token_source.shards import ReadOptions, TokenFile

RAW = {"uint16": "<u2", "uint32": "<u4", "int32": "<i4", "int64": "<i8"}

_NUMPY = b"\x93NUMPY"
# the headers of llm.c and modded-nanogpt: 256 int32, the first a magic number for the type of the ids
_LLM_C_BYTES = 1024
_LLM_C = {20240520: "uint16", 20240801: "uint32"}
_MEGATRON = b"MMIDIDX\0\0"
_MEGATRON_TYPES = ("", "uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16")
_WINDOW = 1 << 20
_FEWEST = 32  # as many wide ids below the vocabulary's size are no accident of narrow ones


@dataclass(frozen=True, slots=True)
class RawForm:
    """The type ``kind`` of raw ids, which begin after ``header`` bytes.

    ``key`` is the word for both in the names of folders: one of ``data.dtype`` for what earlier versions read alike.
    """

    kind: str
    header: int
    key: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the type as one of numpy."""
        return np.dtype(RAW[self.kind])


def raw_form(file: TokenFile, options: ReadOptions) -> RawForm | None:
    """Return how the ids of ``file`` are stored, None if numpy's own header says it.

    The type is that of ``options``, else of a header, else of an index beside the file, else the widest one as which
    all ids looked at are in the vocabulary: halves of wide ids are small ids, but pairs of narrow ids are large ones.
    Raises ``DataError`` if none of them decides, or if the file holds more than ids.
    """
    try:
        begin = _read(file.path, 0, _LLM_C_BYTES)
        if file.path.suffix.lower() == ".npy" and begin.startswith(_NUMPY):
            return None
        told, header = _header(file, begin)
        header = header if told or options.rules > FIRST_RULES else 0
        beside = told or _told_beside(file)
        former = options.dtype if options.dtype != "auto" else beside or "uint16"
        kind = former
        if options.dtype == "auto" and not beside and options.rules > FIRST_RULES:
            kind = _told_by_index(file) or _proved(file, header, options)
    except OSError as error:
        msg = f"{file.name} cannot be read as an array of token ids ({error}): check the file"
        raise DataError(msg) from error
    if kind not in RAW:
        msg = f"{file.name} is declared to hold {kind}, but ids must be one of {', '.join(RAW)}: correct the dtype"
        raise DataError(msg)
    if (file.path.stat().st_size - header) % np.dtype(RAW[kind]).itemsize:
        size = file.path.stat().st_size
        msg = (
            f"{file.name} has {size} bytes, which is not a multiple of the size of {kind}: check the file and the dtype"
        )
        raise DataError(msg)
    key = options.dtype if kind == former else kind
    return RawForm(kind, header, key if told or not header else f"{key} after {header} bytes")


def _header(file: TokenFile, begin: bytes) -> tuple[str | None, int]:
    """Return the type that a header in the file itself tells, if any, and the bytes of the header."""
    size = file.path.stat().st_size
    numbers = np.frombuffer(begin[: len(begin) // 4 * 4], "<u4")
    if len(begin) == _LLM_C_BYTES and (kind := _LLM_C.get(int(numbers[0]))):
        if size == _LLM_C_BYTES + int(numbers[2]) * np.dtype(kind).itemsize:
            return kind, _LLM_C_BYTES
        if int(numbers[1]) == 1:
            msg = (
                f"{file.name} has the header of llm.c for {int(numbers[2])} ids of {kind}, but {size} bytes: "
                "fetch it again"
            )
            raise DataError(msg)
    return None, _chunk_header(file, numbers, size)


def _chunk_header(file: TokenFile, numbers: NDArray[np.uint32], size: int) -> int:
    """Return the bytes of a header of litdata: the number of items, where each begins and where the last one ends."""
    listed = _told_by_chunk_index(file)
    num_items = int(numbers[0]) if len(numbers) else 0
    header = 4 * (num_items + 2)
    if num_items and header < size and len(numbers) > 1 and int(numbers[1]) == header:
        offsets = np.frombuffer(_read(file.path, 4, header - 4), "<u4")
        if int(offsets[-1]) == size and bool((np.diff(offsets.astype(np.int64)) >= 0).all()):
            return header
    if listed:
        msg = f"{file.name} is a chunk of litdata that is compressed, encrypted or damaged: write it uncompressed"
        raise DataError(msg)
    return 0


def _told_by_chunk_index(file: TokenFile) -> bool:
    path = file.path.with_name("index.json")
    if not path.is_file():
        return False
    try:
        record = json.loads(path.read_bytes())
        return any(chunk["filename"] == file.path.name for chunk in record["chunks"])
    except (ValueError, KeyError, TypeError, RecursionError):  # another program's index
        return False


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


def _told_by_index(file: TokenFile) -> str | None:
    """Return the type that Megatron's index beside the file tells."""
    path = file.path.with_suffix(".idx")
    if not path.is_file():
        return None
    begin = _read(path, 0, 18)
    code = begin[17] if len(begin) == 18 and begin.startswith(_MEGATRON) else 0
    return _MEGATRON_TYPES[code] if 0 < code < len(_MEGATRON_TYPES) else None


def _proved(file: TokenFile, header: int, options: ReadOptions) -> str:
    size = file.path.stat().st_size - header
    windows = [np.frombuffer(each, np.uint8) for each in _windows(file.path, header, size)]
    fitting = [
        kind
        for kind in ("int64", "uint32", "uint16")
        if size % np.dtype(RAW[kind]).itemsize == 0
        and all(_fits(window.view(RAW[kind]), options.vocabulary_size) for window in windows)
    ]
    if not size or not fitting:
        return "uint16"  # of which the error message tells the first id that is too large
    wide = np.concatenate(windows).view(RAW[fitting[0]])
    is_proved = len(wide) >= _FEWEST and bool(wide.any()) if len(fitting) > 1 else fitting[0] != "uint16"
    # any two bytes are an id of such a vocabulary, so that only the ends of documents speak for the type
    if not is_proved and len(fitting) == 1:
        is_proved = options.vocabulary_size < 1 << 16 or _holds(file.path, header, options.end_of_text)
    if not is_proved:
        how = f"{' as well as '.join(reversed(fitting))} gives ids of the vocabulary"
        if len(fitting) == 1:
            how = "any two bytes are an id of the vocabulary, and as uint16 none of them is the end-of-text id"
        msg = (
            f"nothing tells the type of the ids in {file.name}, as {how}: set data.dtype to the one in which they were "
            f"written, of {', '.join(RAW)}"
        )
        raise DataError(msg)
    return fitting[0]


def _windows(path: Path, header: int, size: int) -> Iterator[bytes]:
    """Yield the first, the middle and the last bytes of the ids, whole ids of any type unless the file is small."""
    last = max(0, size - _WINDOW) // 8 * 8
    for begin in sorted({0, last // 2 // 8 * 8, last}):
        window = _read(path, header + begin, min(_WINDOW, size - begin))
        yield window if size < _WINDOW else window[: len(window) // 8 * 8]


def _fits(ids: NDArray[np.integer[Any]], vocabulary_size: int) -> bool:
    return int(ids.max()) < vocabulary_size and int(ids.min()) >= 0


def _holds(path: Path, header: int, end_of_text: int) -> bool:
    parts = (_read(path, begin, _WINDOW) for begin in range(header, path.stat().st_size, _WINDOW))
    return any(bool((np.frombuffer(part, "<u2") == end_of_text).any()) for part in parts)


def _read(path: Path, offset: int, size: int) -> bytes:
    with path.open("rb", buffering=0) as file:
        return read_twice(file.fileno(), offset, size)


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
