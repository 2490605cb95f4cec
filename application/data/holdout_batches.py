"""Batches of the held-out documents, for evaluation."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol, final

import numpy as np

from holdfast.domain.data.packing import place_rows
from holdfast.domain.data.row_index import read_rows
from holdfast.domain.data.sample_order import unit_order
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.text_reader import TextReader
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.data.holdout import Holdout
    from holdfast.domain.data.packing import ConcatPacking
    from holdfast.ports.token_source import Tokens, TokenSource


class TokenGroups(Protocol):
    """Documents in some order, in groups, with all held-out documents among them."""

    def __iter__(self) -> Iterator[Tokens]:
        """Yield the documents from the first on."""
        ...


@final
class TextGroups(TokenGroups):
    """The documents of text sources that ``holdout`` holds, with the units of all sources in one shuffled order."""

    def __init__(self, readers: Sequence[TextReader], holdout: Holdout, seed: int) -> None:
        self._readers = readers
        self._holdout = holdout
        self._seed = seed

    def __iter__(self) -> Iterator[Tokens]:
        """Yield the documents from the first on."""
        units = [(reader, unit) for reader in self._readers for unit in reader.source.units()]
        for number in unit_order(len(units), self._seed, 0).tolist():
            reader, unit = units[number]
            for group in reader.tokens(unit, wanted=self._holdout.holds):
                yield group.tokens


@final
class ShardGroups(TokenGroups):
    """All documents of a token source, shard by shard."""

    def __init__(self, tokens: TokenSource) -> None:
        self._tokens = tokens

    def __iter__(self) -> Iterator[Tokens]:
        """Yield the documents from the first on."""
        return map(self._tokens.open, self._tokens.shards())


@final
class HoldoutBatches:
    """Held-out documents as packed batches of ``rows``, up to ``max_tokens`` tokens; kept in memory.

    The set is a pure function of the data, the seed and the tokenizer, so evaluations of one run are comparable.
    """

    def __init__(
        self, groups: TokenGroups, holdout: Holdout, packing: ConcatPacking, *, rows: int, max_tokens: int
    ) -> None:
        self._groups = groups
        self._holdout = holdout
        self._packing = packing
        self._rows = rows
        self._max_tokens = max_tokens
        self._is_cut = False

    @cached_property
    def batches(self) -> Sequence[Batch]:
        """Return the batches; raises ``DataError`` if no document is held out."""
        documents = list(self._documents())
        if not documents:
            msg = f"no document was held out to evaluate on: raise data.holdout, now {self._holdout.fraction}"
            if self._holdout.fraction >= 1:
                msg = "none of the documents holds any text to evaluate on: choose other data"
            raise DataError(msg)
        places = place_rows(documents, self._packing)
        batches = [places[first : first + self._rows] for first in range(0, len(places), self._rows)]
        return [read_rows(batch, self._packing.length) for batch in batches]

    @property
    def is_cut(self) -> bool:
        """Return whether documents were left out because there were more than ``max_tokens`` tokens."""
        return bool(self.batches) and self._is_cut

    def _documents(self) -> Iterator[NDArray[np.unsignedinteger]]:
        room = self._max_tokens
        for tokens in self._groups:
            for number in np.flatnonzero(self._holdout.holds(tokens.hashes)).tolist():
                if room == 0:
                    self._is_cut = True
                    return
                first, last = tokens.offsets[number : number + 2].tolist()
                yield tokens.ids[first : min(last, first + room)]
                room -= last - first
                if room < 0:
                    self._is_cut = True
                    return
