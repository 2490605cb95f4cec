"""Arrays that are computed once and then stored beside the tokens."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.token_store.array_files import load_arrays, store_arrays
from holdfast.adapters.shared.token_store.folder_operations import CorruptTokensError, reading, storing
from holdfast.adapters.shared.token_store.lru_cache import LruCache

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.shared.token_store.token_encryption import ShardCipher
    from holdfast.adapters.shared.token_store.token_folder import TokenFolder

    Arrays = Mapping[str, NDArray[Any]]

_log = logging.getLogger(__name__)


@final
class DerivedArrayStore:
    """Stores arrays in files of ``folder``; at most ``max_open`` of them are mapped, or decrypted, at a time."""

    def __init__(self, folder: TokenFolder, *, verify: bool, max_open: int) -> None:
        self._folder = folder
        self._verify = verify
        self._recent: LruCache[str, Arrays] = LruCache(max_open)
        self._verified: set[Path] = set()

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
            arrays = load_arrays(path, cipher, verify=self._verify and path not in self._verified)
        except FileNotFoundError:
            return None
        except CorruptTokensError as damage:
            _log.warning("%s is computed again: %s", path, damage)
            return None
        self._verified.add(path)
        return arrays

    def _store(self, path: Path, arrays: Arrays, cipher: ShardCipher | None) -> Arrays:
        with storing(path.name, path.parent):
            self._folder.prepare()
            try:
                store_arrays(self._folder, path, arrays, cipher)
                return load_arrays(path, cipher, verify=False)
            except FileNotFoundError:
                if path.parent.exists():
                    raise
                return arrays
