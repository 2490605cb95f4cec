"""Tokens that are kept, so that text is tokenized once."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from holdfast.ports.token_source import TokenSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.ports.token_source import Tokens, TokenShard


class TokenCache(TokenSource):
    """A token source that a run fills, shard by shard.

    - ``put`` writes a shard whole or not at all, whatever happens meanwhile; a shard that is there is left as it is.
      What is written, as it is before any encryption, depends on nothing but the tokens and ``meta``, however the
      tokens are cut into parts. ``meta`` is JSON
      that is kept with them (counts, what was read); it is read behind the last part, so the parts may fill it in.
      What the parts raise comes through, and nothing is written.
    - ``put`` may be called from several threads for several shards, and by several processes at once.
    - ``missing`` tells which of the names have no shard yet, in their order.
    - A full disk raises ``StateError`` and leaves every complete shard as it was.
    - Within ``budget`` bytes: shards that nobody has pinned make room, chosen by the eviction policy; only what a
      cache wrote is ever deleted. A shard is pinned while somebody holds what ``open`` returned for it. A budget that
      the pinned shards and one more exceed raises ``ConfigurationError`` saying how much is needed, and evicts nothing.
    - An evicted shard is missing like one that was never put: ``open`` raises ``DataError``, ``missing`` names it.
    """

    @abstractmethod
    def missing(self, names: Iterable[str]) -> list[str]:
        """Return those of ``names`` that have no complete shard."""

    @abstractmethod
    def put(self, name: str, parts: Iterable[Tokens], meta: Mapping[str, object]) -> TokenShard:
        """Write ``parts``, one after the other, as the shard ``name``."""

    @abstractmethod
    def meta(self, shard: TokenShard) -> Mapping[str, object]:
        """Return what was kept with ``shard``."""
