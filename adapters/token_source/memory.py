"""Tokens in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from blake3 import blake3
from typing_extensions import override

from holdfast.domain.errors import DataError
from holdfast.ports.basic import BasicTokenSource
from holdfast.ports.token_source import Tokens, TokenShard

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[np.int64]]


@final
class MemoryTokenSource(BasicTokenSource):
    """Serves ``shards``, tokens by name, without copying them; the caller must not change them."""

    def __init__(self, shards: Mapping[str, Tokens]) -> None:
        self._tokens = dict(sorted(shards.items()))
        self._shards = [_describe(name, tokens) for name, tokens in self._tokens.items()]
        self._derived: dict[tuple[TokenShard, str], Arrays] = {}

    @override
    def shards(self) -> Sequence[TokenShard]:
        return self._shards

    @override
    def open(self, shard: TokenShard) -> Tokens:
        if shard not in self._shards:
            msg = f"{shard.name!r} is not a shard in memory: use those that shards() returns"
            raise DataError(msg)
        return self._tokens[shard.name]

    @override
    def derive(self, shard: TokenShard, key: str, make: Callable[[Tokens], Arrays]) -> Arrays:
        if (shard, key) not in self._derived:
            self._derived[shard, key] = make(self.open(shard))
        return self._derived[shard, key]

    @override
    def fingerprint(self) -> str:
        return blake3(repr(self._shards).encode("utf-8", "surrogatepass")).hexdigest(length=16)


def _describe(name: str, tokens: Tokens) -> TokenShard:
    hasher = blake3(tokens.ids.dtype.name.encode())
    for array in (tokens.ids[:], tokens.offsets, tokens.hashes):
        hasher.update(blake3(array.tobytes()).digest())
    if tokens.loss_mask is not None:
        hasher.update(blake3(tokens.loss_mask[:].tobytes()).digest())
    return TokenShard(name, len(tokens.ids), len(tokens.hashes), hasher.hexdigest(length=16))
