"""Arrays that are computed once and then stored beside the tokens."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.regular_file import IrregularFileError
from holdfast.adapters.shared.token_store.array_files import load_arrays, read_arrays, store_arrays
from holdfast.adapters.shared.token_store.folder_operations import CorruptTokensError, reading, storing
from holdfast.adapters.shared.token_store.lru_cache import LruCache
from holdfast.domain.errors import TokensLost

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.shared.token_store.array_files import VerifiedArrays
    from holdfast.adapters.shared.token_store.token_encryption import ShardCipher
    from holdfast.adapters.shared.token_store.token_folder import TokenFolder

    Arrays = Mapping[str, NDArray[Any]]

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
