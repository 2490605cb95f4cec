"""A base class that forwards to a token cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from holdfast.ports.token_cache import TokenCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from holdfast.domain.data.data_files import DataFiles
    from holdfast.ports.token_source import Arrays, Tokens, TokenShard


class ForwardingTokenCache(TokenCache):
    """Caches tokens in ``inner``."""

    def __init__(self, inner: TokenCache) -> None:
        self.inner = inner

    @override
    def shards(self) -> Sequence[TokenShard]:
        return self.inner.shards()

    @override
    def open(self, shard: TokenShard) -> Tokens:
        return self.inner.open(shard)

    @override
    def derive(self, shard: TokenShard, key: str, make: Callable[[Tokens], Arrays]) -> Arrays:
        return self.inner.derive(shard, key, make)

    @override
    def fingerprint(self) -> str:
        return self.inner.fingerprint()

    @override
    def files(self) -> DataFiles | None:
        return self.inner.files()

    @override
    def identify(self, known: DataFiles | None = None) -> DataFiles | None:
        return self.inner.identify(known)

    @override
    def missing(self, names: Iterable[str]) -> list[str]:
        return self.inner.missing(names)

    @override
    def put(self, name: str, parts: Iterable[Tokens], meta: Mapping[str, object]) -> TokenShard:
        return self.inner.put(name, parts, meta)

    @override
    def meta(self, shard: TokenShard) -> Mapping[str, object]:
        return self.inner.meta(shard)
