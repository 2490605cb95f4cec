"""Tokens as files, plain or encrypted, in a folder that several runs may share."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from blake3 import blake3
from typing_extensions import override

from holdfast.adapters.shared.files.committed_folder import make_folders, move
from holdfast.adapters.shared.token_store.folder_operations import (
    CorruptTokensError,
    TokenFileOperations,
    plain_name,
    storing,
)
from holdfast.adapters.shared.token_store.shard_writer import ShardWriter
from holdfast.adapters.shared.token_store.token_folder import TokenFolder
from holdfast.adapters.shared.token_store.token_manifest import MANIFEST
from holdfast.adapters.shared.token_store.token_shards import StoredShards, lock_to_evict, read_name
from holdfast.domain.data.cache_eviction import CachedShard, LeastRecentlyUsed, OwnLast
from holdfast.domain.errors import ConfigurationError, DataError
from holdfast.ports.basic import BasicTokenSource
from holdfast.ports.token_cache import TokenCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.adapters.shared.token_store.derived_arrays import Arrays
    from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
    from holdfast.adapters.shared.token_store.token_manifest import ShardManifest
    from holdfast.domain.data.cache_eviction import EvictionPolicy
    from holdfast.ports.token_source import Tokens, TokenShard


@final
class DiskTokenCache(BasicTokenSource, TokenCache):
    """Stores the shards of the dataset ``fingerprint`` under ``folder``, which may contain other datasets.

        <fingerprint>/<shard>/   tokens.bin  offsets.bin  hashes.bin  manifest.json  derived-*.safetensors

    A shard whose documents have a loss mask also has ``loss_mask.bin``, which earlier versions refuse to read.
    A shard exists once its folder has its name; ``shards`` reads each manifest once. ``open`` compares sizes each time
    and, with ``verify``, hashes the first time; a damaged shard is quarantined, so that ``missing`` returns it.
    ``missing`` deletes the unfinished writes of processes that were killed.
    ``budget`` limits the bytes of all complete shards of all datasets; unfinished shards are not counted, and derived
    arrays count from the next ``put`` on. ``eviction`` orders the shards of all datasets; without it, those of other
    datasets are evicted first, least recently used first. Derived arrays are evicted with their shard. A shard is
    pinned while a process holds its ids. Each slice of them is read and compared with what was verified; a shard that
    changed meanwhile is quarantined. The last ``max_open`` shards stay open, each with one file
    descriptor (derived arrays need none), until their space is needed. ``folder`` must be new, empty or a token cache,
    or ``ConfigurationError`` is raised; it must be on a local disk, as locks work only there. With ``encryption``
    everything but names, sizes and counts is encrypted, with a key for each shard, and ids are decrypted when they are
    read; a folder contains either encrypted or plain tokens.
    """

    def __init__(
        self,
        folder: Path,
        fingerprint: str,
        *,
        budget: int | None = None,
        eviction: EvictionPolicy | None = None,
        verify: bool = True,
        max_open: int = 256,
        encryption: ShardEncryption | None = None,
        files: TokenFileOperations | None = None,
    ) -> None:
        self._encryption = encryption
        is_encrypted = encryption is not None
        self._folder = TokenFolder(folder.absolute(), files or TokenFileOperations(), is_encrypted=is_encrypted)
        place = self._folder.root / plain_name(fingerprint)
        self._shards = StoredShards(self._folder, place, verify=verify, max_open=max_open, encryption=encryption)
        policy = eviction or OwnLast({place.name}, LeastRecentlyUsed())
        self._cache_budget = (
            None if budget is None else CacheBudget(self._folder, self._shards, budget=budget, policy=policy)
        )

    @override
    def shards(self) -> Sequence[TokenShard]:
        return [manifest.shard for manifest in self._shards.scan().values()]

    @override
    def missing(self, names: Iterable[str]) -> list[str]:
        complete = self._shards.scan()
        self._folder.sweep()  # a start asks this, also one that has nothing to write
        return [name for name in names if name not in complete]

    @override
    def put(self, name: str, parts: Iterable[Tokens], meta: Mapping[str, object]) -> TokenShard:
        with storing(f"the shard {name!r}", self._folder.root):
            self._folder.prepare()
            if (stored := self._stored(name)) is not None:
                return stored.shard
            make_folders(self._folder.files, self._shards.place)
        grown = self._cache_budget.check if self._cache_budget else _unlimited
        with self._folder.draft() as draft:  # exceptions of the parts propagate unchanged
            cipher = self._encryption and self._encryption.new()
            manifest = ShardWriter(self._folder.files, draft, grown, cipher).write(name, parts, meta)
            with storing(f"the shard {name!r}", self._folder.root):
                return self._publish(draft, manifest).shard

    @override
    def meta(self, shard: TokenShard) -> Mapping[str, object]:
        return self._shards.meta(shard)

    @override
    def open(self, shard: TokenShard) -> Tokens:
        return self._shards.open(shard)

    @override
    def derive(self, shard: TokenShard, key: str, make: Callable[[Tokens], Arrays]) -> Arrays:
        return self._shards.derive(shard, key, make)

    @override
    def fingerprint(self) -> str:
        content = "".join(f"{len(shard.name)}:{shard.name}{shard.fingerprint}" for shard in self.shards())
        return blake3(content.encode("utf-8", "surrogatepass")).hexdigest(length=16)

    def _publish(self, draft: Path, manifest: ShardManifest) -> ShardManifest:
        target = self._shards.path_of(manifest.name)
        with self._folder.locked():
            if (stored := self._stored(manifest.name)) is not None:
                return stored  # another process stored it first, and may use it
            if self._cache_budget is not None:
                self._cache_budget.free(sum(manifest.sizes.values()) + (draft / MANIFEST).stat().st_size)
            make_folders(self._folder.files, target.parent)
            move(self._folder.files, draft, target)
        return manifest

    def _stored(self, name: str) -> ShardManifest | None:
        path = self._shards.path_of(name)
        try:
            return self._shards.read(path)
        except (FileNotFoundError, NotADirectoryError, CorruptTokensError):
            pass  # there is no complete shard
        if path.exists() or path.is_symlink():
            self._shards.set_aside(name)
        return None


def _unlimited(_: int) -> None:
    pass


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
