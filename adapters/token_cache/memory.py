"""A token cache that lives as long as its object."""

from __future__ import annotations

import json
import time
import weakref
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any, final

import numpy as np
from blake3 import blake3
from typing_extensions import override

from holdfast.domain.data.cache_eviction import CachedShard, LeastRecentlyUsed
from holdfast.domain.data.loss_mask import join_masks
from holdfast.domain.errors import ConfigurationError, TokensLost
from holdfast.ports.basic import BasicTokenSource
from holdfast.ports.token_cache import TokenCache
from holdfast.ports.token_source import Tokens, TokenShard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.domain.data.cache_eviction import EvictionPolicy

    Arrays = Mapping[str, NDArray[np.int64]]


@dataclass(slots=True)
class _Entry:
    shard: TokenShard
    tokens: Tokens
    meta: Mapping[str, object]
    last_used: float
    lent: weakref.ref[Any] | None = None
    derived: dict[str, Arrays] = field(default_factory=dict)

    @property
    def is_pinned(self) -> bool:
        return self.lent is not None and self.lent() is not None

    @property
    def num_bytes(self) -> int:
        return _size_of(self.tokens)


@final
class MemoryTokenCache(BasicTokenSource, TokenCache):
    """Stores shards in memory, at most ``budget`` bytes; a shard is pinned while a result of ``open`` exists.

    ``eviction`` chooses the shards to remove, by default the least recently used.
    """

    def __init__(self, *, budget: int | None = None, eviction: EvictionPolicy | None = None) -> None:
        self._budget = budget
        self._policy = eviction or LeastRecentlyUsed()
        self._entries: dict[str, _Entry] = {}
        self._lock = RLock()

    @override
    def shards(self) -> Sequence[TokenShard]:
        with self._lock:
            return [self._entries[name].shard for name in sorted(self._entries)]

    @override
    def missing(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name not in self._entries]

    @override
    def put(self, name: str, parts: Iterable[Tokens], meta: Mapping[str, object]) -> TokenShard:
        if (stored := self._entries.get(name)) is not None:
            return stored.shard
        tokens = _joined(parts)
        shard = TokenShard(name, len(tokens.ids), len(tokens.hashes), _fingerprint_of(tokens))
        kept = json.loads(json.dumps(dict(meta)))
        with self._lock:
            if name not in self._entries:
                self._make_room(_size_of(tokens))
                self._entries[name] = _Entry(shard, tokens, kept, time.time())
            return self._entries[name].shard

    @override
    def meta(self, shard: TokenShard) -> Mapping[str, object]:
        return self._entry(shard).meta

    @override
    def open(self, shard: TokenShard) -> Tokens:
        with self._lock:
            entry = self._entry(shard)
            entry.last_used = time.time()
            ids = entry.lent() if entry.lent is not None else None
            if ids is None:
                ids = entry.tokens.ids[:]
                entry.lent = weakref.ref(ids)
            return Tokens(ids, entry.tokens.offsets, entry.tokens.hashes, entry.tokens.loss_mask)

    @override
    def derive(self, shard: TokenShard, key: str, make: Callable[[Tokens], Arrays]) -> Arrays:
        entry = self._entry(shard)
        if key not in entry.derived:
            entry.derived[key] = {name: _frozen(array) for name, array in make(entry.tokens).items()}
        return entry.derived[key]

    @override
    def fingerprint(self) -> str:
        content = "".join(f"{len(shard.name)}:{shard.name}{shard.fingerprint}" for shard in self.shards())
        return blake3(content.encode("utf-8", "surrogatepass")).hexdigest(length=16)

    def _entry(self, shard: TokenShard) -> _Entry:
        entry = self._entries.get(shard.name)
        if entry is None or entry.shard != shard:
            msg = f"the shard {shard.name!r} is no longer in the token cache: run the same command to tokenize it again"
            raise TokensLost(msg)
        return entry

    def _make_room(self, num_bytes: int) -> None:
        if self._budget is None:
            return
        pinned = sum(entry.num_bytes for entry in self._entries.values() if entry.is_pinned)
        if pinned + num_bytes > self._budget:
            msg = (
                f"the budget of {self._budget} bytes for the token cache in memory is too small: this shard and those "
                f"in use take {pinned + num_bytes} bytes; set the budget to at least {pinned + num_bytes}, or none"
            )
            raise ConfigurationError(msg)
        free = self._budget - sum(entry.num_bytes for entry in self._entries.values())
        candidates = [
            CachedShard("", name, entry.num_bytes, entry.last_used)
            for name, entry in self._entries.items()
            if not entry.is_pinned
        ]
        for candidate in self._policy.first_to_go(candidates):
            if free < num_bytes:
                free += candidate.num_bytes
                del self._entries[candidate.name]


def _size_of(tokens: Tokens) -> int:
    mask = 0 if tokens.loss_mask is None else len(tokens.loss_mask)
    return tokens.ids[:].nbytes + tokens.offsets.nbytes + tokens.hashes.nbytes + mask


def _joined(parts: Iterable[Tokens]) -> Tokens:
    ids: list[NDArray[np.unsignedinteger]] = []
    offsets: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
    hashes: list[NDArray[np.uint64]] = [np.zeros(0, np.uint64)]
    masks: list[NDArray[np.bool_] | None] = []
    num_tokens = 0
    for part in parts:
        whole = slice(part.offsets[0], part.offsets[-1])
        ids.append(np.array(part.ids[whole]))
        masks.append(None if part.loss_mask is None else np.array(part.loss_mask[whole]))
        offsets.append(part.offsets[1:] - part.offsets[0] + num_tokens)
        hashes.append(np.array(part.hashes))
        num_tokens += len(ids[-1])
    flat = np.concatenate(ids) if ids else np.zeros(0, np.uint16)
    mask = join_masks(masks, [len(each) for each in ids])
    frozen = None if mask is None else _frozen(mask)
    return Tokens(_frozen(flat), _frozen(np.concatenate(offsets)), _frozen(np.concatenate(hashes)), frozen)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    frozen = array.copy()
    frozen.flags.writeable = False
    return frozen


def _fingerprint_of(tokens: Tokens) -> str:
    hasher = blake3(tokens.ids.dtype.name.encode())
    for array in (tokens.ids[:], tokens.offsets, tokens.hashes):
        hasher.update(blake3(array.tobytes()).digest())
    if tokens.loss_mask is not None:
        hasher.update(blake3(tokens.loss_mask[:].tobytes()).digest())
    return str(hasher.hexdigest(length=16))
