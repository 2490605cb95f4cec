"""Eviction policies of a full token cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


@dataclass(frozen=True, slots=True)
class CachedShard:
    """A complete shard in a cache: ``fingerprint`` identifies the dataset, ``last_used`` is in seconds since 1970."""

    fingerprint: str
    name: str
    num_bytes: int
    last_used: float


class EvictionPolicy(Protocol):
    """Decides the order in which shards are evicted.

    Called each time that space is needed, in the thread that needs it. Shards that a process has open are skipped.
    """

    def first_to_go(self, shards: Sequence[CachedShard]) -> Sequence[CachedShard]:
        """Return ``shards``, of one dataset or several, in the order in which they should be evicted."""
        ...


@dataclass(frozen=True, slots=True)
class LeastRecentlyUsed:
    """Evicts the least recently read shard first: used if the order of reading is unknown."""

    def first_to_go(self, shards: Sequence[CachedShard]) -> Sequence[CachedShard]:
        """Return ``shards``, the least recently used first."""
        return sorted(shards, key=lambda shard: (shard.last_used, shard.name))


@dataclass(frozen=True, slots=True)
class FarthestNextUse:
    """Evicts the shard whose next use is farthest away: optimal if the order of reading is known (Belady 1966).

    ``next_use`` returns the time at which a shard is read next, in any increasing unit; None means never. It is called
    for each eviction, so its result may depend on a run's position.
    """

    next_use: Callable[[CachedShard], int | None]

    def first_to_go(self, shards: Sequence[CachedShard]) -> Sequence[CachedShard]:
        """Return ``shards``: first those that are never used again, then by next use, the latest first.

        Among equal shards the least recently used comes first.
        """
        return sorted(shards, key=self._key)

    def _key(self, shard: CachedShard) -> tuple[bool, int, float, str]:
        next_use = self.next_use(shard)
        return next_use is not None, -(next_use or 0), shard.last_used, shard.name


@dataclass(frozen=True, slots=True)
class OwnLast:
    """Evicts the datasets ``own``, which a run needs, only after all shards of other datasets.

    ``policy`` orders the shards of other datasets, and then those of ``own``.
    """

    own: Collection[str]
    policy: EvictionPolicy

    def first_to_go(self, shards: Sequence[CachedShard]) -> Sequence[CachedShard]:
        """Return ``shards``, first the shards of other datasets."""
        own = [shard for shard in shards if shard.fingerprint in self.own]
        others = [shard for shard in shards if shard.fingerprint not in self.own]
        return [*self.policy.first_to_go(others), *self.policy.first_to_go(own)]
