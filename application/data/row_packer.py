"""Packed rows of a token source, read by number."""

from __future__ import annotations

import time
import weakref
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

from holdfast.domain.data.exclusion import NO_EXCLUSION, Exclusion
from holdfast.domain.data.preference_pairs import rejected_starts, split_pairs
from holdfast.domain.data.row_index import RowIndex
from holdfast.domain.data.supervision import Supervision

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.reference_column import ReferenceColumn
    from holdfast.domain.data.loss_mask import LossMask
    from holdfast.domain.data.packing import Packing
    from holdfast.domain.data.row_index import RowPlace
    from holdfast.domain.data.supervision import Flags
    from holdfast.domain.data.token_ids import TokenIds
    from holdfast.ports.token_source import Tokens, TokenShard, TokenSource

    Wanted = Callable[[NDArray[np.uint64]], NDArray[np.bool_]]

_Opened = tuple["TokenIds", "LossMask | None", RowIndex]

_OPEN_SHARDS = 2048  # whose indexes of rows stay in memory
_ASKED_AGAIN_SECONDS = 10.0  # after these, open shards are reported to the source as in use again


class Rows(Protocol):
    """Rows with random access by number."""

    @property
    def num_rows(self) -> int:
        """Return how many rows there are."""
        ...

    @property
    def dropped(self) -> int:
        """Return how many tokens packing left out."""
        ...

    def at(self, numbers: NDArray[np.int64]) -> Sequence[RowPlace]:
        """Return where the rows with these ``numbers`` lie."""
        ...

    def parts(self) -> Iterator[PackedRows]:
        """Yield the rows of each token source, in the order of the numbers."""
        ...

    def with_reference(self, reference: ReferenceColumn) -> Rows:
        """Return the same rows of pairs, with the log-probabilities of ``reference``."""
        ...


@final
class JoinedRows(Rows):
    """The rows of all ``parts``, those of the first one first: later parts change no number."""

    def __init__(self, parts: Sequence[Rows]) -> None:
        self._parts = parts

    @property
    def num_rows(self) -> int:
        """Return how many rows all parts have."""
        return sum(part.num_rows for part in self._parts)

    @property
    def dropped(self) -> int:
        """Return how many tokens packing left out of all parts."""
        return sum(part.dropped for part in self._parts)

    def at(self, numbers: NDArray[np.int64]) -> Sequence[RowPlace]:
        """Return where the rows with these ``numbers`` lie."""
        places: dict[int, RowPlace] = {}
        first = 0
        for part in self._parts:
            here = np.flatnonzero((first <= numbers) & (numbers < first + part.num_rows))
            if len(here):
                places |= zip(here.tolist(), part.at(numbers[here] - first), strict=True)
            first += part.num_rows
        return [places[place] for place in range(len(numbers))]

    def parts(self) -> Iterator[PackedRows]:
        """Yield the rows of each token source, in the order of the numbers."""
        for part in self._parts:
            yield from part.parts()

    def with_reference(self, reference: ReferenceColumn) -> JoinedRows:
        """Return the same rows of pairs, with the log-probabilities of ``reference``."""
        return JoinedRows([part.with_reference(reference) for part in self._parts])


@final
class _AtHand:
    """The ids of a shard with their loss mask, for as long as the source keeps them open, and their index."""

    def __init__(self, ids: TokenIds, mask: LossMask | None, index: RowIndex) -> None:
        self._ids = weakref.ref(ids)
        self._mask = None if mask is None else weakref.ref(mask)
        self._index = index

    def found(self) -> _Opened | None:
        """Return ids, loss mask and index, None if the source has closed them."""
        ids, mask = self._ids(), None if self._mask is None else self._mask()
        if ids is None or (mask is None and self._mask is not None):
            return None
        return ids, mask, self._index


@final
class PackedRows(Rows):
    """The rows that the ``wanted`` documents of a token source make, shard by shard, with random access by number.

    ``wanted`` maps the uint64 hashes of documents to bool; ``key`` names packing and choice: derived arrays are cached
    under it. The pieces of ``excluded`` documents are removed from the rows, whose numbers stay the same. ``chosen``
    maps a shard to the documents that count among the wanted ones, bool (documents,); None takes all of them. With
    ``holds_pairs`` each document is a pair of conversations, which become two pieces of a row; ``reference`` has their
    log-probabilities. ``progress`` gets the shards that were packed and their number while they are counted; an error
    that it raises ends that.
    """

    def __init__(
        self,
        tokens: TokenSource,
        packing: Packing,
        wanted: Wanted,
        key: str,
        *,
        excluded: Exclusion = NO_EXCLUSION,
        chosen: Callable[[TokenShard], NDArray[np.bool_]] | None = None,
        holds_pairs: bool = False,
        reference: ReferenceColumn | None = None,
    ) -> None:
        self.tokens = tokens
        self._holds_pairs = holds_pairs
        self._reference = reference
        self._chosen = chosen
        self._excluded = excluded
        self._packing = packing
        self._wanted = wanted
        self._key = key
        self.progress: Callable[[int, int], object] = lambda _done, _total: None
        self._index_of = lru_cache(_OPEN_SHARDS)(self._derive_index)
        self._at_hand: dict[int, _AtHand] = {}
        self._asked = time.monotonic()

    def with_reference(self, reference: ReferenceColumn) -> PackedRows:
        """Return the same rows of pairs, with the log-probabilities of ``reference``."""
        return PackedRows(
            self.tokens,
            self._packing,
            self._wanted,
            self._key,
            excluded=self._excluded,
            chosen=self._chosen,
            holds_pairs=True,
            reference=reference,
        )

    @property
    def num_rows(self) -> int:
        """Return how many rows there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def fill(self) -> float:
        """Return the share of the rows' places that hold a token."""
        rows, tokens = self._totals["rows"].sum(), self._totals["tokens"].sum()
        return float(tokens / max(1, rows * self._packing.length))

    @property
    def dropped(self) -> int:
        """Return how many tokens packing left out."""
        return int(self._totals["dropped"].sum())

    def at(self, numbers: NDArray[np.int64]) -> Sequence[RowPlace]:
        """Return where the rows with these ``numbers`` lie."""
        shards, within = self.locate(numbers)
        if time.monotonic() - self._asked > _ASKED_AGAIN_SECONDS or len(self._at_hand) > _OPEN_SHARDS:
            self._at_hand, self._asked = {}, time.monotonic()
        opened, at_hand = {}, self._at_hand
        for shard in set(shards.tolist()):
            held = at_hand.get(shard)
            opened[shard] = (held and held.found()) or self._open(shard)
        return [(*opened[shard], row) for shard, row in zip(shards.tolist(), within.tolist(), strict=True)]

    def parts(self) -> Iterator[PackedRows]:
        """Yield these rows."""
        yield self

    def locate(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the number of the shard of each row, and the number of the row in it, both int64."""
        shards = np.searchsorted(self._ends, numbers, side="right")
        return shards, numbers - (self._ends[shards] - self._totals["rows"][shards])

    def first_row(self, shard: int) -> int:
        """Return the number of the first row of the shard with the number ``shard``."""
        return int(self._ends[shard] - self._totals["rows"][shard])

    def _open(self, shard: int) -> _Opened:
        """Return the ids of a shard, their loss mask and their index, and keep them at hand while they are open."""
        tokens = self.tokens.open(self.shards[shard])
        index = self._index_of(shard)
        self._at_hand[shard] = _AtHand(tokens.ids, tokens.loss_mask, index)
        return tokens.ids, tokens.loss_mask, index

    @cached_property
    def shards(self) -> Sequence[TokenShard]:
        """Return the shards whose documents make the rows, in the order of the rows."""
        return self.tokens.shards()

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum(self._totals["rows"])

    @cached_property
    def _totals(self) -> Mapping[str, NDArray[np.int64]]:
        if not self.shards:
            return {name: np.zeros(0, np.int64) for name in ("rows", "tokens", "dropped")}
        # stored with the first shard, so that a start need not open thousands of shards
        return self.tokens.derive(self.shards[0], f"totals {self._key} {self.tokens.fingerprint()}", self._count)

    def _count(self, _: Tokens) -> Mapping[str, NDArray[np.int64]]:
        meters = []
        for number, shard in enumerate(self.shards):
            self.progress(number, len(self.shards))
            meters.append(self._derive(shard))
        return {
            "rows": np.array([len(arrays["rows"]) - 1 for arrays in meters]),
            "tokens": np.array([arrays["lengths"].sum() for arrays in meters]),
            "dropped": np.array([arrays["dropped"][0] for arrays in meters]),
        }

    def whole_index(self, shard: int) -> RowIndex:
        """Return the rows of the shard with the number ``shard``, with the pieces of excluded documents."""
        arrays = self._derive(self.shards[shard])
        return RowIndex(arrays["starts"], arrays["lengths"], arrays["rows"])

    def supervision(self, ends: Collection[int]) -> Supervision:
        """Return what the loss mask leaves to train on in these rows; ``ends`` are the ids that end a reply."""
        supervision = Supervision()
        for number, shard in enumerate(self.shards):
            tokens = self.tokens.open(shard)
            too_long = self._wanted_in(shard, tokens) & (np.diff(tokens.offsets) > self._packing.length)
            targets, ended = targets_of(tokens, ends)
            index = self._index_of(number)
            supervision += Supervision.of_rows(index, targets, ended, too_long=int(np.count_nonzero(too_long)))
        return supervision

    def _derive_index(self, shard: int) -> RowIndex:
        index = self.whole_index(shard)
        if not len(self._excluded) and not self._holds_pairs:
            return index
        tokens = self.tokens.open(self.shards[shard])
        if len(self._excluded):
            index = self._excluded.shorten(index, tokens.offsets[:-1], tokens.hashes)
        if not self._holds_pairs:
            return index
        values = None if self._reference is None else self._reference.of(self.tokens, self.shards[shard])
        return split_pairs(index, tokens.offsets, rejected_starts(tokens.loss_mask, tokens.offsets), values)

    def _derive(self, shard: TokenShard) -> Mapping[str, NDArray[Any]]:
        return self.tokens.derive(shard, f"rows {self._key}", partial(self._pack, shard))

    def _pack(self, shard: TokenShard, tokens: Tokens) -> Mapping[str, NDArray[np.int64]]:
        wanted = self._wanted_in(shard, tokens)
        packed = self._packing(tokens.offsets[:-1][wanted], np.diff(tokens.offsets)[wanted])
        index = packed.index
        return {
            "starts": index.starts,
            "lengths": index.lengths,
            "rows": index.rows,
            "dropped": np.array([packed.dropped]),
        }

    def _wanted_in(self, shard: TokenShard, tokens: Tokens) -> NDArray[np.bool_]:
        wanted = self._wanted(tokens.hashes)
        return wanted if self._chosen is None else wanted & self._chosen(shard)


def targets_of(tokens: Tokens, ends: Collection[int]) -> tuple[Flags, Flags]:
    """Return functions from a range of ``tokens`` to those that are trained on, and to those of them in ``ends``."""
    ids, mask, last = tokens.ids, tokens.loss_mask, sorted(ends)

    def targets(begin: int, end: int) -> NDArray[np.bool_]:
        return np.ones(end - begin, np.bool_) if mask is None else mask[begin:end]

    return targets, lambda begin, end: targets(begin, end) & np.isin(ids[begin:end], last)
