"""Arrays that are computed once and then stored beside the tokens."""

from __future__ import annotations

import json
import logging
import math
import os
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from io import FileIO
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar, final

import numpy as np
from blake3 import blake3
from safetensors.numpy import save

from holdfast.adapters.shared.files.file_operations import create_file
from holdfast.adapters.shared.files.regular_file import IrregularFileError, read_at, regular
from holdfast.adapters.shared.token_store.checked_ids import CheckedFile, CheckedIds, block_digests
from holdfast.adapters.shared.token_store.folder_operations import CorruptTokensError, bytes_of, reading, storing
from holdfast.domain.errors import TokensLost

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from holdfast.adapters.shared.token_store.token_encryption import ShardCipher
    from holdfast.adapters.shared.token_store.token_folder import TokenFolder

    Arrays = Mapping[str, NDArray[Any]]
    _Place = tuple[np.dtype[Any], tuple[int, ...], int, int]

_log = logging.getLogger(__name__)


@final
class DerivedArrayStore:
    """Stores arrays in files of ``folder``; at most ``max_open`` files are read, or decrypted, at a time.

    Arrays are in memory, but for ``ids``, which are read from their file and compared with what was verified.
    """

    def __init__(self, folder: TokenFolder, *, verify: bool, max_open: int) -> None:
        self._folder = folder
        self._verify = verify
        self._recent: LruCache[str, Arrays] = LruCache(max_open)
        self._verified: dict[Path, VerifiedArrays] = {}

    def get(self, path: Path, make: Callable[[], Arrays], cipher: ShardCipher | None = None) -> Arrays:
        """Return the arrays in the file ``path``; if missing or damaged, make and store them, encrypted by ``cipher``.

        If the parent folder no longer exists (its shard was evicted), they are made but not stored. Raises
        ``StateError`` if the disk reports an error.
        """
        arrays = self._recent.get(str(path))
        if arrays is None:
            with reading(path.name, path.parent):
                arrays = self._load(path, cipher)
            if arrays is None:
                arrays = self._store(path, make(), cipher)
            self._recent.put(str(path), arrays)
        return arrays

    def _load(self, path: Path, cipher: ShardCipher | None) -> Arrays | None:
        try:
            arrays = self._read(path, cipher)
        except FileNotFoundError:
            return None
        except (CorruptTokensError, IrregularFileError) as damage:
            _log.warning("%s is computed again: %s", path, damage)
            return None
        return arrays

    def _read(self, path: Path, cipher: ShardCipher | None) -> Arrays:
        if cipher is not None:
            try:
                return load_arrays(path, cipher, verify=self._verify)
            except CorruptTokensError:  # if only the reading was wrong, another is right
                return load_arrays(path, cipher, verify=self._verify)
        known = self._verified.get(path)
        arrays, self._verified[path] = read_arrays(path, partial(_changed, path), known, verify=self._verify)
        return arrays

    def _store(self, path: Path, arrays: Arrays, cipher: ShardCipher | None) -> Arrays:
        with storing(path.name, path.parent):
            self._folder.prepare()
            try:
                store_arrays(self._folder, path, arrays, cipher)
                self._verified.pop(path, None)
                return self._read(path, cipher)
            except FileNotFoundError:
                if path.parent.exists():
                    raise
                return arrays


def _changed(path: Path, clause: str) -> Exception:
    return TokensLost(f"{path} was changed while it was in use ({clause}): run the same command to make it again")


_CHUNK = 1 << 20
_TORN, _WRONG = "{} is torn", "{} does not have the bytes that were written"
_OTHER = "{} holds {}"
_DTYPES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64, "I32": np.int32, "I64": np.int64}


def store_arrays(folder: TokenFolder, path: Path, arrays: Arrays, cipher: ShardCipher | None = None) -> None:
    """Write ``arrays`` to ``path``, durably, as a safetensors file with its name and a hash, encrypted by ``cipher``.

    If several processes write the file at once, one of their files remains. Raises ``OSError``; the parent folder must
    exist.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with folder.draft() as draft:
        unfinished = draft / path.name
        data = _file_of(contiguous, {"blake3": _digest(contiguous), "name": path.name})
        create_file(folder.files, unfinished, data if cipher is None else cipher.encrypt(path.name, data))
        folder.files.rename(unfinished, path)
        folder.files.sync_folder(path.parent)


def _file_of(arrays: Arrays, metadata: Mapping[str, str]) -> bytes:
    """Return the safetensors file, whose bytes follow from its contents: the library orders ``metadata`` at random."""
    data = save(dict(arrays), metadata=dict(metadata))
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end]) | {"__metadata__": metadata}
    return data[:8] + json.dumps(header, separators=(",", ":")).encode("ascii").ljust(end - 8) + data[end:]


def load_arrays(
    path: Path,
    cipher: ShardCipher | None = None,
    *,
    verify: bool,
    only: Collection[str] | None = None,
    row: int | None = None,
) -> Arrays:
    """Return the arrays in ``path``, or those named ``only``, read into memory and decrypted by ``cipher``.

    With ``row`` only this row of each is returned; without ``verify`` nothing else is read. Raises ``OSError``, and
    ``CorruptTokensError`` for a truncated file or, with ``verify``, for wrong bytes.
    """
    with FileIO(path, opener=regular) as file:
        read: Callable[[int, int], bytes] = partial(read_at, file.fileno())
        size = os.fstat(file.fileno()).st_size
        if cipher is not None:
            encrypted = cipher.open(path.name, file)
            read, size = partial(cipher.read, encrypted), encrypted.size
        digest, places = _header(read, path, size)
        arrays: dict[str, NDArray[Any]] = {}
        whole = blake3()
        for name, place in places.items():
            is_wanted = only is None or name in only
            if not (is_wanted or verify):
                continue
            dtype, shape, begin, num_bytes = place if row is None or verify else _row_of(place, row)
            data = read(begin, num_bytes)
            if len(data) < num_bytes:
                raise CorruptTokensError(_TORN.format(path.name))
            if verify:
                _add(whole, name, dtype, shape, data)
            if is_wanted:
                array = np.frombuffer(data, dtype).reshape(shape)
                arrays[name] = array[row] if verify and row is not None else array
    if verify and whole.hexdigest() != digest:
        raise CorruptTokensError(_WRONG.format(path.name))
    return arrays


@dataclass(frozen=True, slots=True)
class VerifiedArrays:
    """The hashes that the arrays of a file had when it was verified: of the blocks of its ids, and of the others."""

    blocks: bytes
    digests: Mapping[str, bytes]


def read_arrays(
    path: Path, fail: Callable[[str], Exception], known: VerifiedArrays | None, *, verify: bool
) -> tuple[Arrays, VerifiedArrays]:
    """Return the arrays in ``path``, and what they are known by when they are read again.

    ``ids`` are read when they are used, and ``fail`` returns the error to raise if they are not what was verified; the
    other arrays are read here. Raises ``OSError``, and ``CorruptTokensError`` for a truncated file or, with ``verify``,
    for wrong bytes, once these were read twice.
    """
    try:
        return _read_once(path, fail, known, verify=verify)
    except CorruptTokensError:
        return _read_once(path, fail, known, verify=verify)


def _read_once(
    path: Path, fail: Callable[[str], Exception], known: VerifiedArrays | None, *, verify: bool
) -> tuple[Arrays, VerifiedArrays]:
    file = FileIO(path, opener=regular)
    try:
        arrays, found = _read_arrays(file, path, fail, known, verify=verify)
    except BaseException:
        file.close()
        raise
    if "ids" not in arrays:  # else they own the file
        file.close()
    return arrays, found


def _read_arrays(
    file: FileIO, path: Path, fail: Callable[[str], Exception], known: VerifiedArrays | None, *, verify: bool
) -> tuple[Arrays, VerifiedArrays]:
    digest, places = _header(partial(read_at, file.fileno()), path, os.fstat(file.fileno()).st_size)
    arrays: dict[str, Any] = {}
    whole, blocks, digests = blake3(), b"" if known is None else known.blocks, {}
    for name, (dtype, shape, begin, num_bytes) in places.items():
        if name == "ids":
            whole.update(f"{name}:{dtype}:{shape};".encode())
            if known is None and verify:
                blocks = _hashed(file, begin, num_bytes, whole)
            arrays[name] = CheckedIds(CheckedFile(file, (begin, num_bytes), blocks if verify else None, fail), dtype)
            continue
        data = read_at(file.fileno(), begin, num_bytes)
        _add(whole, name, dtype, shape, data)
        digests[name] = blake3(data).digest()
        arrays[name] = np.frombuffer(data, dtype).reshape(shape)
    is_same = whole.hexdigest() == digest if known is None else digests == known.digests
    if verify and not is_same:
        raise CorruptTokensError(_WRONG.format(path.name))
    return arrays, VerifiedArrays(blocks, digests)


def _header(read: Callable[[int, int], bytes], path: Path, size: int) -> tuple[str, Mapping[str, _Place]]:
    """Return the hash and the places of the arrays of a file of ``size`` bytes; ``read`` takes where and how many."""
    try:
        header_end = 8 + int.from_bytes(read(0, 8), "little")
        header = json.loads(read(8, min(header_end, size) - 8))
        told = header.pop("__metadata__")
        if told.get("name", path.name) != path.name:
            raise CorruptTokensError(_OTHER.format(path.name, told["name"]))
        return told["blake3"], {name: _place(entry, header_end, size) for name, entry in sorted(header.items())}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, MemoryError, AttributeError) as error:
        raise CorruptTokensError(_TORN.format(path.name)) from error


def _place(entry: Mapping[str, Any], header_end: int, size: int) -> _Place:
    begin, end = entry["data_offsets"]
    dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(entry["shape"])
    if header_end + end > size or end - begin != dtype.itemsize * math.prod(shape):
        raise ValueError
    return dtype, shape, header_end + begin, end - begin


def _row_of(place: _Place, row: int) -> _Place:
    dtype, shape, begin, num_bytes = place
    size = num_bytes // shape[0]
    return dtype, shape[1:], begin + row * size, size


def _hashed(file: FileIO, begin: int, size: int, whole: blake3) -> bytes:
    blocks = []
    for offset in range(0, size, _CHUNK):
        data = read_at(file.fileno(), begin + offset, min(_CHUNK, size - offset))
        whole.update(data)
        blocks.append(block_digests(data))
    return b"".join(blocks)


def _digest(arrays: Arrays) -> str:
    hasher = blake3()
    for name, array in sorted(arrays.items()):
        _add(hasher, name, array.dtype, array.shape, bytes_of(array))
    return str(hasher.hexdigest())


def _add(hasher: blake3, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], data: Buffer) -> None:
    hasher.update(f"{name}:{dtype}:{shape};".encode())
    hasher.update(data)


K = TypeVar("K")
V = TypeVar("V")


@final
class LruCache(Generic[K, V]):
    """Holds the ``size`` values used last; usable from several threads, as keys are strings."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """Return the value of ``key``, None if it is not cached."""
        value = self._values.get(key)
        if value is not None:
            try:  # noqa: SIM105  neither that nor the lock, each as long as the rest: it is asked for each row
                self._values.move_to_end(key)
            except KeyError:  # evicted meanwhile
                pass
        return value

    def peek(self, key: K) -> V | None:
        """Return the value of ``key``, None if it is not cached, without counting this as a use."""
        return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        """Cache ``value``, and evict the least recently used one if necessary."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        """Remove the value of ``key``, if it is cached."""
        with self._lock:
            self._values.pop(key, None)
