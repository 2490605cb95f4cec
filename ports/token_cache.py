"""The port for cached tokens: text is tokenized only once."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from holdfast.ports.token_source import TokenSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.ports.token_source import Tokens, TokenShard


class TokenCache(TokenSource):
    """A token source that a run fills, shard by shard.

    - ``put`` writes a shard atomically; a shard that exists is left unchanged. The bytes written, before encryption,
      depend only on the tokens, their loss masks and ``meta``, not on how the tokens are divided into parts. If any
      part has a loss mask, the shard has one, in which parts without a mask train on all of their tokens. ``meta`` is
      JSON that is stored with the shard (counts, sources); it is read after the last part, so that parts may add to it
      while they are read. If a part raises, the exception propagates and nothing is written.
    - ``put`` may be called from several threads for several shards, and by several processes at once.
    - ``missing`` returns the names that have no shard yet, in their order.
    - A full disk raises ``StateError`` and leaves every complete shard unchanged.
    - The cache stays within ``budget`` bytes: shards that are not pinned are evicted by the eviction policy, and only
      files that a cache wrote are ever deleted. A shard is pinned while a result of ``open`` for it is in use. If the
      pinned shards and the new one exceed the budget, ``put`` raises ``ConfigurationError`` with the bytes that are
      needed, and evicts nothing.
    - An evicted shard is treated as if it had never been put: ``open`` raises ``DataError``, and ``missing`` returns
      its name.
    """

    @abstractmethod
    def missing(self, names: Iterable[str]) -> list[str]:
        """Return the names in ``names`` that have no complete shard, in their order."""

    @abstractmethod
    def put(self, name: str, parts: Iterable[Tokens], meta: Mapping[str, object]) -> TokenShard:
        """Write the concatenation of ``parts`` as the shard ``name``.

        Raises ``StateError`` if the disk is full, and ``ConfigurationError`` if the shard does not fit into the budget.
        """

    @abstractmethod
    def meta(self, shard: TokenShard) -> Mapping[str, object]:
        """Return the ``meta`` that was stored with ``shard``."""
