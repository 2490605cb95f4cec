"""Builds the eviction policy of the token cache from the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.wiring.plugins import has_methods, load_plugin, make_plugin
from holdfast.domain.data.cache_eviction import FarthestNextUse, LeastRecentlyUsed, OwnLast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.application.data.text_reader import TextReader
    from holdfast.bootstrap.wiring.dataset_registry import Datasets
    from holdfast.configs.sections.data import CacheSettings
    from holdfast.domain.data.cache_eviction import CachedShard, EvictionPolicy
    from holdfast.domain.data.mixture import Mixture

EVICTIONS = ("next_use", "lru")


def first_uses(readers: Sequence[TextReader], mixture: Mixture, datasets: Datasets) -> dict[str, int]:
    """Return by fingerprint the datasets that a run of ``readers`` needs, and from which of its samples on.

    What was added to an only source, with readers after those of ``mixture``, counts as needed from the beginning.
    """
    uses: dict[str, int] = {}
    for number, reader in enumerate(readers):
        is_added = number >= mixture.num_sources
        first = 0 if is_added else next(stage.start for stage in mixture.stages if stage.weights[number])
        key = datasets.name_of(reader)
        uses[key] = min(first, uses.get(key, first))  # two sources may be the same documents
    return uses


def load_eviction(cache: CacheSettings, uses: Mapping[str, int]) -> EvictionPolicy:
    """Return the policy that the settings name; the datasets in ``uses`` go last, whatever it says.

    Raises ``ConfigurationError`` if it cannot be had.
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
