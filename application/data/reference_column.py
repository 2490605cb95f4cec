"""The log-probabilities of preferences under the reference model, kept beside the tokens."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NoReturn, final

import numpy as np

from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from holdfast.ports.token_source import Tokens, TokenShard, TokenSource

_DOCUMENTS = 512  # in a block, which is computed again after a kill
_NAME = "log_probabilities"


class _NoBlockError(Exception):
    """A block is not stored; it never leaves this module."""


@final
class ReferenceColumn:
    """Two log-probabilities for each pair: of its chosen and of its rejected reply under the reference model ``key``.

    ``key`` identifies the weights and the configuration of the model, its precision and the length of a row. Pairs are
    stored in blocks of ``documents``, as arrays that are derived from a shard.
    """

    def __init__(self, key: str, *, documents: int = _DOCUMENTS) -> None:
        self.key = key
        self._documents = documents

    def of(self, tokens: TokenSource, shard: TokenShard) -> NDArray[np.float64]:
        """Return the log-probabilities of the pairs in ``shard``, float64 (documents, 2), NaN where none was needed.

        Raises ``DataError`` if a block is missing.
        """
        try:
            blocks = [self._get(tokens, shard, number, _absent) for number in range(self.num_blocks(shard))]
        except _NoBlockError:
            msg = (
                f"the reference log-probabilities of the tokens {shard.name} are not in the token cache: run the "
                "command prepare with the settings of the run"
            )
            raise DataError(msg) from None
        return np.concatenate([np.zeros((0, 2)), *blocks])

    def num_blocks(self, shard: TokenShard) -> int:
        """Return the number of blocks of ``shard``."""
        return -(-shard.num_documents // self._documents)

    def block(self, number: int) -> slice:
        """Return the documents of the block ``number``; the end may be after the last document."""
        return slice(number * self._documents, (number + 1) * self._documents)

    def has(self, tokens: TokenSource, shard: TokenShard, number: int) -> bool:
        """Return whether the block ``number`` of ``shard`` is stored."""
        try:
            self._get(tokens, shard, number, _absent)
        except _NoBlockError:
            return False
        return True

    def store(self, tokens: TokenSource, shard: TokenShard, number: int, values: NDArray[np.float64]) -> None:
        """Store ``values``, float64 (documents, 2), as the block ``number`` of ``shard``, unless there is one."""
        self._get(tokens, shard, number, partial(_as_integers, values))

    def _get(
        self,
        tokens: TokenSource,
        shard: TokenShard,
        number: int,
        make: Callable[[Tokens], Mapping[str, NDArray[np.int64]]],
    ) -> NDArray[np.float64]:
        name = f"reference {self.key} {self._documents} {number}"
        return tokens.derive(shard, name, make)[_NAME].view(np.float64).reshape(-1, 2)


def _absent(_: Tokens) -> NoReturn:
    raise _NoBlockError


def _as_integers(values: NDArray[np.float64], _: Tokens) -> Mapping[str, NDArray[np.int64]]:
    # the arrays of a token source are int64
    return {_NAME: np.ascontiguousarray(values).reshape(-1).view(np.int64)}
