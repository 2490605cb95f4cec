"""Builds the eviction policy of the token cache from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.wiring.plugins import has_methods, load_plugin, make_plugin
from holdfast.domain.data.cache_eviction import FarthestNextUse, LeastRecentlyUsed, OwnLast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.application.data.text_reader import TextReader
    from holdfast.bootstrap.wiring.dataset_registry import Datasets
    from holdfast.configs.sections.tokens import CacheSettings
    from holdfast.domain.data.cache_eviction import CachedShard, EvictionPolicy
    from holdfast.domain.data.mixture import Mixture

EVICTIONS = ("next_use", "lru")


def first_uses(readers: Sequence[TextReader], mixture: Mixture, datasets: Datasets) -> dict[str, int]:
    """Return, by the fingerprint of each dataset that ``readers`` need, the first sample of the run that needs it.

    Data that were added to a single source, whose readers follow those of ``mixture``, count from the first sample.
    """
    uses: dict[str, int] = {}
    for number, reader in enumerate(readers):
        is_added = number >= mixture.num_sources
        first = 0 if is_added else next(stage.start for stage in mixture.stages if stage.weights[number])
        key = datasets.name_of(reader)
        uses[key] = min(first, uses.get(key, first))  # two sources may be the same documents
    return uses


def load_eviction(cache: CacheSettings, uses: Mapping[str, int]) -> EvictionPolicy:
    """Return the policy in the settings; the datasets in ``uses`` are evicted last under any policy.

    Raises ``ConfigurationError`` if the policy cannot be loaded.
    """

    def next_use(shard: CachedShard) -> int | None:
        return uses.get(shard.fingerprint)

    makers: Sequence[Callable[[], EvictionPolicy]] = (lambda: FarthestNextUse(next_use), LeastRecentlyUsed)
    built_in = dict(zip(EVICTIONS, makers, strict=True))
    kind = cache.eviction
    new = built_in[kind] if kind in built_in else load_plugin("eviction", kind, built_in=built_in)
    policy: EvictionPolicy = make_plugin(
        "eviction",
        kind,
        new,
        cache.eviction_options or {},
        is_one=lambda made: has_methods(made, "first_to_go"),
        otherwise=" without first_to_go",
    )
    return OwnLast(uses.keys(), policy)
