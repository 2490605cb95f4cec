"""Which shards of a full cache make room for another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


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
        """Return ``shards``, all of one dataset, the one that is missed least first."""
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

    ``next_use`` tells for a shard's name when it is read next, in any unit that grows; a name that it lacks is never
    read again. It is looked into each time, so it may be a view of a run's position.
    """

    next_use: Mapping[str, int]

    def first_to_go(self, shards: Sequence[CachedShard]) -> Sequence[CachedShard]:
        """Return ``shards``, those never used again first, then the one used farthest in the future."""
        return sorted(shards, key=self._key)

    def _key(self, shard: CachedShard) -> tuple[bool, int, float, str]:
        next_use = self.next_use.get(shard.name)
        return next_use is not None, -(next_use or 0), shard.last_used, shard.name


def order_of_eviction(
    shards: Iterable[CachedShard], *, fingerprint: str, policy: EvictionPolicy
) -> Sequence[CachedShard]:
    """Return ``shards`` in the order in which they make room for one of the dataset ``fingerprint``.

    Other datasets' go first, the one last used longest ago first: no policy of this run knows when they are needed.
    """
    own: list[CachedShard] = []
    others: list[CachedShard] = []
    for shard in shards:
        (own if shard.fingerprint == fingerprint else others).append(shard)
    return [*LeastRecentlyUsed().first_to_go(others), *policy.first_to_go(own)]
