"""The port for tokenized documents with random access."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.domain.data.data_files import DataFiles
    from holdfast.domain.data.loss_mask import LossMask
    from holdfast.domain.data.token_ids import TokenIds

    Arrays = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class TokenShard:
    """A part of a token source: ``name`` is unique within it; ``fingerprint`` identifies its content."""

    name: str
    num_tokens: int
    num_documents: int
    fingerprint: str


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """A shard's documents, flat: document ``i`` is ``ids[offsets[i]:offsets[i + 1]]``, including its end-of-text id.

    ``ids`` is uint16 or uint32, (num_tokens,), possibly read, compared or decrypted slice by slice. ``offsets`` is
    int64, (num_documents + 1,). ``hashes`` is uint64, (num_documents,), and equal for equal documents; it decides which
    documents are held out. ``loss_mask``, (num_tokens,), says which tokens are trained on, possibly unpacked slice by
    slice; None means all of them.
    """

    ids: TokenIds
    offsets: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    loss_mask: LossMask | None = None


class TokenSource(ABC):
    """Tokenized documents in shards that never change.

    - ``shards`` has the same order each time, sorted by name.
    - ``open`` reads lazily, and may be called often and from several threads; its result stays readable even if
      the source is closed or deleted afterwards.
    - A damaged or missing shard raises ``DataError`` that names the shard and says how to recreate it.
    - ``derive(shard, key, make)`` returns ``make`` of the shard's tokens. The result may come from an earlier call with
      the same ``key``, also in another process; ``make`` must therefore be a pure function that ``key`` identifies.
    - ``fingerprint`` identifies all documents, their order and their loss masks.
    """

    @abstractmethod
    def shards(self) -> Sequence[TokenShard]:
        """Return the shards that are complete."""

    @abstractmethod
    def open(self, shard: TokenShard) -> Tokens:
        """Return the tokens of ``shard``. Raises ``DataError`` if the shard is damaged or missing."""

    @abstractmethod
    def derive(self, shard: TokenShard, key: str, make: Callable[[Tokens], Arrays]) -> Arrays:
        """Return the arrays that ``make`` computes from the tokens of ``shard``, int64 of any shape, by name.

        Raises ``DataError`` if the shard is damaged or missing.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that identifies the tokens."""

    @abstractmethod
    def files(self) -> DataFiles | None:
        """Return the identity of the tokens, independent of their place; None: only ``fingerprint`` is known."""

    @abstractmethod
    def identify(self, known: DataFiles | None = None) -> DataFiles | None:
        """Return ``files`` with content hashes, as ``DataSource.identify`` does."""
