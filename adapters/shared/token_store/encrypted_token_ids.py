"""Token ids that are decrypted as they are read."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, final

import numpy as np

from holdfast.adapters.shared.token_store.folder_operations import reading

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.shared.encryption.encrypted_file import EncryptedFile


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
