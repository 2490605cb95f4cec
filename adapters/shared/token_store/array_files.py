"""Named arrays in one file, written atomically and memory-mapped for reading."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3
from safetensors.numpy import save

from holdfast.adapters.shared.token_store.folder_operations import CorruptTokensError, bytes_of
from holdfast.adapters.shared.token_store.mmap_file import map_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.shared.token_store.token_encryption import ShardCipher
    from holdfast.adapters.shared.token_store.token_folder import TokenFolder

    Arrays = Mapping[str, NDArray[Any]]

_DTYPES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64, "I32": np.int32, "I64": np.int64}


def store_arrays(folder: TokenFolder, path: Path, arrays: Arrays, cipher: ShardCipher | None = None) -> None:
    """Write ``arrays`` to ``path``, durably, as a safetensors file with a hash of them, encrypted by ``cipher``.

    If several processes write the file at once, one of their files remains. Raises ``OSError``; the parent folder must
    exist.
    """
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with folder.draft() as draft:
        unfinished = draft / path.name
        data = save(contiguous, metadata={"blake3": _digest(contiguous)})
        folder.files.write_file(unfinished, data if cipher is None else cipher.encrypt(path.name, data))
        folder.files.sync_file(unfinished)
        folder.files.replace_file(unfinished, path)
        folder.files.sync_folder(path.parent)


def load_arrays(path: Path, cipher: ShardCipher | None = None, *, verify: bool) -> Arrays:
    """Return the arrays in ``path``, as read-only views of one memory map, or of the decrypted bytes.

    Raises ``OSError``, and ``CorruptTokensError`` for a truncated file or, with ``verify``, for wrong bytes.
    """
    with path.open("rb") as file:
        mapped = map_file(file.fileno()) if cipher is None else memoryview(cipher.decrypt(path.name, file.read()))
    try:
        header_end = 8 + int.from_bytes(mapped[:8], "little")
        header = json.loads(bytes(mapped[8:header_end]))
        digest = header.pop("__metadata__")["blake3"]
        arrays = {name: _view(mapped, header_end, entry) for name, entry in sorted(header.items())}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, MemoryError) as error:
        msg = f"{path.name} is torn"
        raise CorruptTokensError(msg) from error
    if verify and _digest(arrays) != digest:
        msg = f"{path.name} does not have the bytes that were written"
        raise CorruptTokensError(msg)
    return arrays


def _view(mapped: memoryview, header_end: int, entry: Mapping[str, Any]) -> NDArray[Any]:
    begin, end = entry["data_offsets"]
    if header_end + end > len(mapped):
        raise ValueError
    return np.ndarray(entry["shape"], _DTYPES[entry["dtype"]], mapped, header_end + begin)


def _digest(arrays: Arrays) -> str:
    hasher = blake3()
    for name, array in sorted(arrays.items()):
        hasher.update(f"{name}:{array.dtype}:{array.shape};".encode())
        hasher.update(bytes_of(array))
    return str(hasher.hexdigest())
