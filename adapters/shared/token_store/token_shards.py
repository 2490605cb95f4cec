"""The shards of one dataset in a folder of tokens."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, final

from holdfast.adapters.shared.token_store.checked_ids import CheckedIds
from holdfast.adapters.shared.token_store.derived_arrays import DerivedArrayStore
from holdfast.adapters.shared.token_store.folder_operations import CorruptTokensError, reading, safe_name
from holdfast.adapters.shared.token_store.lru_cache import LruCache
from holdfast.adapters.shared.token_store.shard_reader import check_digests, check_sizes, open_tokens, read_manifest
from holdfast.adapters.shared.token_store.token_manifest import MANIFEST, ShardManifest
from holdfast.domain.errors import DataError, StateError, TokensLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from holdfast.adapters.shared.token_store.derived_arrays import Arrays
    from holdfast.adapters.shared.token_store.token_encryption import ShardEncryption
    from holdfast.adapters.shared.token_store.token_folder import TokenFolder
    from holdfast.ports.token_source import Tokens, TokenShard

_REMEDY = "run the same command to tokenize it again"


@dataclass(slots=True)
class _Opened:
    tokens: Tokens
    fingerprint: str
    last_used: float


@final
class StoredShards:
    """Lists and opens the shards below ``place``, a folder in ``folder``; ``max_open`` of them stay open and pinned.

    An open shard needs one file descriptor, derived arrays need none. With ``encryption`` all of them are encrypted.
    A missing or damaged shard raises ``error``, and ``remedy`` ends its sentence.
    """

    def __init__(
        self,
        folder: TokenFolder,
        place: Path,
        *,
        verify: bool,
        max_open: int,
        remedy: str = _REMEDY,
        error: type[DataError] = TokensLost,
        encryption: ShardEncryption | None = None,
    ) -> None:
        self.place = place
        self._folder = folder
        self._verify = verify
        self._remedy = remedy
        self._error = error
        self._encryption = encryption
        self._recent: LruCache[str, _Opened] = LruCache(max_open)
        self._kept = DerivedArrayStore(folder, verify=verify, max_open=max_open)
        self._manifests: dict[str, ShardManifest] = {}
        self._blocks: dict[str, bytes] = {}
        self._lock = Lock()

    def path_of(self, name: str) -> Path:
        """Return the folder of the shard ``name``, which may not exist."""
        return self.place / safe_name(name)

    def read(self, path: Path) -> ShardManifest:
        """Return the manifest of the shard in the folder ``path``; raises the errors of ``read_manifest``."""
        try:
            return read_manifest(self._folder.files, path, self._encryption)
        except CorruptTokensError:  # if only the reading was wrong, another is right
            return read_manifest(self._folder.files, path, self._encryption)

    def scan(self) -> Mapping[str, ShardManifest]:
        """Return the complete shards by name, sorted; each manifest is read once, and its ``meta`` is left out."""
        with self._lock, reading("the list of shards", self.place):
            is_there = self._folder.check() and self.place.is_dir()
            found = {path.name for path in self.place.iterdir()} if is_there else set()
            for folder in self._manifests.keys() - found:
                del self._manifests[folder]
            for folder in found - self._manifests.keys():
                with contextlib.suppress(CorruptTokensError, FileNotFoundError, NotADirectoryError):
                    manifest = self.read(self.place / folder)
                    if safe_name(manifest.name) == folder:
                        self._manifests[folder] = replace(manifest, meta={})
            return {
                manifest.name: manifest for manifest in sorted(self._manifests.values(), key=lambda each: each.name)
            }

    def forget(self, name: str) -> None:
        """Close a shard that is about to be deleted or replaced; arrays returned earlier stay readable."""
        self._recent.drop(name)
        with self._lock:
            self._manifests.pop(safe_name(name), None)
            self._blocks.pop(name, None)

    def last_used(self, name: str) -> float:
        """Return the time of the last use of the shard here, in seconds since 1970; 0 if it is not open."""
        opened = self._recent.peek(name)
        return opened.last_used if opened is not None else 0

    def meta(self, shard: TokenShard) -> Mapping[str, object]:
        """Return the ``meta`` stored with ``shard``."""
        return self._manifest(shard).meta

    def open(self, shard: TokenShard) -> Tokens:
        """Return the tokens of ``shard``; a damaged one is quarantined and raises ``DataError``."""
        opened = self._recent.get(shard.name)
        if opened is None or opened.fingerprint != shard.fingerprint:
            opened = _Opened(self._map(shard), shard.fingerprint, 0)
            self._recent.put(shard.name, opened)
        opened.last_used = time.time()
        return opened.tokens

    def derive(self, shard: TokenShard, key: str, make: Callable[[Tokens], Arrays]) -> Arrays:
        """Return the arrays that ``make`` computes from the tokens of ``shard``, stored beside it under ``key``."""
        cipher = None if self._encryption is None else self._manifest(shard).cipher
        what = f"{shard.fingerprint} {key}"
        name = safe_name(what) if cipher is None else cipher.hidden(what)
        path = self.path_of(shard.name) / f"derived-{name}.safetensors"
        return self._kept.get(path, lambda: make(self.open(shard)), cipher)

    def set_aside(self, name: str) -> Path | None:
        """Move a damaged shard into quarantine and return its new path; None if it no longer exists."""
        self.forget(name)
        self._folder.prepare()
        return self._folder.set_aside(self.path_of(name))

    def _map(self, shard: TokenShard) -> Tokens:
        path = self.path_of(shard.name)
        manifest = self._manifest(shard)
        with self._damage_set_aside(shard.name), reading(f"the shard {shard.name!r}", path):
            check_sizes(path, manifest)
            try:
                tokens = open_tokens(path, manifest, partial(self._changed, shard.name), verify=self._verify)
            except FileNotFoundError as error:
                raise self._gone(shard) from error
            if self._verify:
                if shard.name not in self._blocks:
                    self._blocks[shard.name] = check_digests(self._folder.files, path, manifest)
                if isinstance(tokens.ids, CheckedIds):
                    tokens.ids.file.blocks = self._blocks[shard.name]
        with contextlib.suppress(OSError):  # only the order of eviction suffers
            os.utime(path / MANIFEST)
        return tokens

    def _manifest(self, shard: TokenShard) -> ShardManifest:
        path = self.path_of(shard.name)
        with self._damage_set_aside(shard.name), reading(f"the shard {shard.name!r}", path):
            try:
                manifest = self.read(path)
            except FileNotFoundError as error:
                raise self._gone(shard) from error
        if manifest.shard != shard:
            msg = f"the shard {shard.name!r} in {path} has changed since it was listed: {self._remedy}"
            raise self._error(msg)
        return manifest

    @contextlib.contextmanager
    def _damage_set_aside(self, name: str) -> Iterator[None]:
        try:
            yield
        except CorruptTokensError as damage:
            path = self.path_of(name)
            with reading(f"the damaged shard {name!r}", path):
                aside = self.set_aside(name)
            where = f"was moved to {aside}" if aside else "is gone"
            msg = f"the shard {name!r} in {path} is damaged ({damage}) and {where}: {self._remedy}"
            raise self._error(msg) from damage

    def _changed(self, name: str, clause: str) -> Exception:
        """Set aside an open shard that is not what was verified, and return the error to raise."""
        try:
            with self._damage_set_aside(name):
                raise CorruptTokensError(clause)
        except (DataError, StateError) as error:
            return error

    def _gone(self, shard: TokenShard) -> DataError:
        self.forget(shard.name)
        return self._error(f"the shard {shard.name!r} is no longer in {self.place}: {self._remedy}")
