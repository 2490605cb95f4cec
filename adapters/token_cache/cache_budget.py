"""The disk budget of a token cache, and the eviction of shards that exceed it."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.token_store.folder_operations import CorruptTokensError
from holdfast.adapters.shared.token_store.shard_reader import lock_to_evict, read_name
from holdfast.adapters.shared.token_store.token_manifest import MANIFEST
from holdfast.domain.data.cache_eviction import CachedShard
from holdfast.domain.errors import ConfigurationError, DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from holdfast.adapters.shared.token_store.token_folder import TokenFolder
    from holdfast.adapters.shared.token_store.token_shards import StoredShards
    from holdfast.domain.data.cache_eviction import EvictionPolicy


@dataclass(frozen=True, slots=True)
class _Stored:
    name: str
    num_bytes: int
    last_used: float


@final
class CacheBudget:
    """Limits the shards of all datasets in ``folder`` to ``budget`` bytes."""

    def __init__(self, folder: TokenFolder, shards: StoredShards, *, budget: int, policy: EvictionPolicy) -> None:
        self._folder = folder
        self._shards = shards
        self._budget = budget
        self._policy = policy
        self._names: dict[Path, str] = {}

    def check(self, num_bytes: int) -> None:
        """Raise ``ConfigurationError`` if a shard of ``num_bytes`` would not fit into an empty cache."""
        if num_bytes > self._budget:
            self._raise_too_small(num_bytes, 0)

    def free(self, num_bytes: int) -> None:
        """Evict shards until there is room for ``num_bytes`` more; the caller holds the folder's lock.

        Raises ``ConfigurationError`` and deletes nothing if the shards in use leave too little room.
        """
        stored = self._stored()
        used = sum(each.num_bytes for each in stored.values())
        excess = used + num_bytes + _size_of(self._folder.quarantine) - self._budget
        if excess > 0:
            excess = used + num_bytes - self._budget
            self._empty_quarantine()
        with contextlib.ExitStack() as locks:
            victims: list[Path] = []
            for path in self._in_order(stored) if excess > 0 else ():
                if excess > 0 and self._lock(path, stored[path].name, locks):
                    victims.append(path)
                    excess -= stored[path].num_bytes
            if excess > 0:
                self._raise_too_small(num_bytes, used - sum(stored[path].num_bytes for path in victims))
            for path in victims:
                self._folder.throw_away(path)

    def _raise_too_small(self, num_bytes: int, pinned: int) -> None:
        needed = num_bytes + pinned
        msg = (
            f"the budget of {self._budget} bytes for the token cache in {self._folder.root} is too small: this shard "
            f"and those that are in use take {needed} bytes; set the budget to at least {needed}, or none"
        )
        raise ConfigurationError(msg)

    def _lock(self, path: Path, name: str, locks: contextlib.ExitStack) -> bool:
        if path.parent == self._shards.place:
            self._shards.forget(name)
        descriptor = lock_to_evict(path)
        if descriptor is None:
            return False
        locks.callback(os.close, descriptor)
        return True

    def _in_order(self, stored: Mapping[Path, _Stored]) -> Iterator[Path]:
        shards = {
            CachedShard(path.parent.name, each.name, each.num_bytes, each.last_used): path
            for path, each in stored.items()
        }
        return (shards[shard] for shard in self._policy.first_to_go(list(shards)))

    def _stored(self) -> Mapping[Path, _Stored]:
        found = {}
        for place in self._folder.root.iterdir():
            if place.is_dir() and not place.is_symlink() and not place.name.startswith("."):
                for path in place.iterdir():
                    if (stored := self._describe(path)) is not None:
                        found[path] = stored
        self._names = {path: stored.name for path, stored in found.items()}
        return found

    def _describe(self, path: Path) -> _Stored | None:
        try:
            name = self._names.get(path) or read_name(self._folder.files, path)
            with os.scandir(path) as entries:
                status = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
            last_used = status[MANIFEST].st_mtime
        except (FileNotFoundError, NotADirectoryError, KeyError, CorruptTokensError, DataError):
            return None  # not a complete shard that Holdfast wrote, so not deleted
        if path.parent == self._shards.place:
            last_used = max(last_used, self._shards.last_used(name))
        return _Stored(name, sum(each.st_size for each in status.values()), last_used)

    def _empty_quarantine(self) -> None:
        for path in sorted(self._folder.quarantine.iterdir()):
            self._folder.files.remove_tree(path)


def _size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
