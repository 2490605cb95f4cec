"""Files of the search for duplicates, beside the tokens in a token cache."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, final

from holdfast.adapters.shared.files.committed_folder import make_folders
from holdfast.adapters.shared.files.file_operations import replace_file
from holdfast.adapters.shared.files.regular_file import read_regular
from holdfast.adapters.shared.token_store.derived_arrays import load_arrays, store_arrays
from holdfast.adapters.shared.token_store.folder_operations import (
    CorruptTokensError,
    TokenFileOperations,
    plain_name,
    reading,
    storing,
)
from holdfast.adapters.shared.token_store.token_folder import TokenFolder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from holdfast.adapters.shared.token_store.token_encryption import ShardCipher, ShardEncryption

    Arrays = Mapping[str, NDArray[Any]]

DUPLICATES = ".duplicates"
DUPLICATES_KEY = "key.json"
_SUFFIX = ".safetensors"

_log = logging.getLogger(__name__)


@final
class DuplicateFiles:
    """Named arrays in groups, each array file written atomically.

        <folder>/.duplicates/<group>/<name>.safetensors

    ``folder`` is that of a token cache. With ``encryption`` the arrays are encrypted, as they tell which documents are
    equal; each group has a key of its own, wrapped by the key provider's, in the file ``key.json``. Methods raise
    ``StateError`` if the disk reports an error, or if the key provider does not have the key. Usable from several
    threads and processes at once.
    """

    def __init__(self, folder: Path, encryption: ShardEncryption | None = None) -> None:
        self._folder = TokenFolder(folder.absolute(), TokenFileOperations(), is_encrypted=encryption is not None)
        self._root = self._folder.root / DUPLICATES
        self._encryption = encryption
        self._lock = Lock()
        self._ciphers: dict[str, ShardCipher] = {}
        self._verified: set[Path] = set()

    def load(self, group: str, name: str, only: Collection[str] | None = None, row: int | None = None) -> Arrays | None:
        """Return the arrays that were stored under this name, or those ``only`` names; None if there are none.

        With ``row`` only this row of each is read. A damaged file counts as missing. It is verified, as a whole, when
        it is read for the first time.
        """
        path = self._path(group, name)
        with reading(name, path.parent):
            if not path.exists():
                return None
            try:
                cipher, verify = self._cipher(group), path not in self._verified
                arrays = load_arrays(path, cipher, verify=verify, only=only, row=row)
            except FileNotFoundError:  # removed meanwhile by another process
                return None
            except CorruptTokensError as damage:
                _log.warning("%s is computed again: %s", path, damage)
                return None
        self._verified.add(path)
        return arrays

    def store(self, group: str, name: str, arrays: Arrays) -> None:
        """Store ``arrays`` durably under this name, in place of those that have it."""
        path = self._path(group, name)
        with storing(name, path.parent):
            self._folder.prepare()
            make_folders(self._folder.files, path.parent)
            store_arrays(self._folder, path, arrays, self._cipher(group))
            self._verified.discard(path)

    def remove(self, group: str) -> None:
        """Remove all arrays of the group."""
        place = self._root / plain_name(group)
        self._ciphers.pop(group, None)
        with storing(DUPLICATES, self._root), suppress(FileNotFoundError):
            self._folder.prepare()
            self._folder.throw_away(place)

    def _path(self, group: str, name: str) -> Path:
        return self._root / plain_name(group) / f"{name}{_SUFFIX}"

    def _cipher(self, group: str) -> ShardCipher | None:
        if self._encryption is None:
            return None
        with self._lock:
            if group not in self._ciphers:
                self._ciphers[group] = self._open_cipher(
                    self._encryption, self._root / plain_name(group) / DUPLICATES_KEY
                )
            return self._ciphers[group]

    def _open_cipher(self, encryption: ShardEncryption, path: Path) -> ShardCipher:
        with self._folder.locked():  # so that two processes do not write two keys
            if path.exists():
                return encryption.open(json.loads(read_regular(path)))
            cipher = encryption.new()
            replace_file(path, json.dumps(cipher.to_json()).encode("ascii"))
            return cipher
