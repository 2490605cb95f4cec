"""Eviction policies of a full token cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence


@dataclass(frozen=True, slots=True)
class CachedShard:
    """A complete shard in a cache: ``fingerprint`` tells the dataset, ``last_used`` is in seconds since 1970."""

    fingerprint: str
    name: str
    num_bytes: int
    last_used: float


class EvictionPolicy(Protocol):
    """Decides the order in which shards make room.

    It is asked each time that room is needed, in whichever thread needs it. What somebody has open is passed over.
    """

    def first_to_go(self, shards: Sequence[CachedShard]) -> Sequence[CachedShard]:
        """Return ``shards``, of one dataset or several, the one that is missed least first."""
        ...


@dataclass(frozen=True, slots=True)
class LeastRecentlyUsed:
    """Evicts what was not read for the longest time: for an order of reading that nobody can know."""

    def first_to_go(self, shards: Sequence[CachedShard]) -> Sequence[CachedShard]:
        """Return ``shards``, the one last used longest ago first."""
        return sorted(shards, key=lambda shard: (shard.last_used, shard.name))


@dataclass(frozen=True, slots=True)
class FarthestNextUse:
    """Evicts what is needed again last, which no other policy beats where the order of reading is known (Belady 1966).

    ``next_use`` tells when a shard is read next, in any unit that grows; None is never. It is asked each time, so it
    may follow a run's position.
    """

    next_use: Callable[[CachedShard], int | None]

    def first_to_go(self, shards: Sequence[CachedShard]) -> Sequence[CachedShard]:
        """Return ``shards``, those never used again first, then the one used farthest in the future.

        Among equals the one last used longest ago comes first.
        """
        return sorted(shards, key=self._key)

    def _key(self, shard: CachedShard) -> tuple[bool, int, float, str]:
        next_use = self.next_use(shard)
        return next_use is not None, -(next_use or 0), shard.last_used, shard.name


@dataclass(frozen=True, slots=True)
class OwnLast:
    """Lets the datasets ``own``, which a run needs, go only when nothing of others is left to go.

    ``policy`` decides among the others' shards, and then among its own.
    """

    own: Collection[str]
    policy: EvictionPolicy

    def first_to_go(self, shards: Sequence[CachedShard]) -> Sequence[CachedShard]:
        """Return ``shards``, those of other datasets first."""
        own = [shard for shard in shards if shard.fingerprint in self.own]
        others = [shard for shard in shards if shard.fingerprint not in self.own]
        return [*self.policy.first_to_go(others), *self.policy.first_to_go(own)]
