"""Finds the documents in the samples of a run, and the samples with a document, from the order of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, final

import numpy as np

from holdfast.application.data.shard_meta import ShardDocuments
from holdfast.domain.data.document_spans import NO_POSITION, Spans, UnitName
from holdfast.domain.data.exclusion import document_of
from holdfast.domain.data.packed_rows import pieces_in
from holdfast.ports.token_cache import TokenCache

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.cached_batches import CachedBatches
    from holdfast.application.data.row_packer import PackedRows
    from holdfast.domain.data.row_index import RowIndex

    Ids = Sequence[NDArray[np.unsignedinteger]]

_OPEN_SHARDS = 1024
_SAMPLES_AT_ONCE = 1 << 20  # to be searched for a document, 30 bytes each


class Tracer(Protocol):
    """The documents in the samples of a run, as they are without any exclusion."""

    def spans(self, begin: int, end: int) -> Spans:
        """Return the pieces of documents in the samples from ``begin`` to before ``end``, fewer at the end of data."""
        ...

    def texts(self, begin: int, end: int) -> tuple[Spans, Ids]:
        """Return ``spans``, and the token ids of each piece, unsigned (its tokens,)."""
        ...

    def find(self, documents: NDArray[np.uint64], end: int) -> Spans:
        """Return the pieces of ``documents`` in the samples before ``end``."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Shard:
    """A shard whose rows are traced: its rows, documents, and the number of the unit of each in the tracer's table."""

    index: RowIndex
    begins: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    units: NDArray[np.int64]
    positions: NDArray[np.int64]


class _Pieces(NamedTuple):
    """Pieces of documents, one element of each array for each: ``places`` are those of their samples.

    ``parts`` and ``shards`` are the numbers of the rows and of the shard that hold it, ``starts`` the first tokens in
    the shard; the other arrays are as in ``Spans``.
    """

    places: NDArray[np.int64]
    units: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    positions: NDArray[np.int64]
    first_tokens: NDArray[np.int64]
    sizes: NDArray[np.int64]
    parts: NDArray[np.int64]
    shards: NDArray[np.int64]
    starts: NDArray[np.int64]

    @classmethod
    def none(cls) -> Self:
        """Return no pieces."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, np.zeros(0, np.uint64), *[nothing] * 6)


@dataclass(frozen=True, slots=True, eq=False)
class _SourceRows:
    """The rows of one token source that belong to ``source``: ``num_rows`` from the row ``first_row`` on."""

    rows: PackedRows
    source: int
    first_row: int


@final
class CachedTracer(Tracer):
    """Finds the documents behind cached rows; ``names`` are those of the sources of ``batches``.

    A token source that does not record where its documents come from gives the names of its shards as units.
    """

    def __init__(self, batches: CachedBatches, names: Sequence[str]) -> None:
        self._order, self._total = batches.order()
        self._names = names
        self._parts: list[_SourceRows] = []
        for source, rows in enumerate(batches.sources):
            first_row = 0
            for part in rows.parts():
                self._parts.append(_SourceRows(part, source, first_row))
                first_row += part.num_rows
        self._units: dict[UnitName, int] = {}
        self._shard = lru_cache(_OPEN_SHARDS)(self._open)

    def spans(self, begin: int, end: int) -> Spans:
        """Return the pieces of documents in the samples from ``begin`` to before ``end``, fewer at the end of data."""
        return self._trace(self._existing(begin, end))[0]

    def texts(self, begin: int, end: int) -> tuple[Spans, Ids]:
        """Return ``spans``, and the token ids of each piece, unsigned (its tokens,)."""
        spans, parts, shards, starts = self._trace(self._existing(begin, end))
        found = []
        for part, shard, start, size in zip(
            parts.tolist(), shards.tolist(), starts.tolist(), spans.num_tokens.tolist(), strict=True
        ):
            rows = self._parts[part].rows
            found.append(np.array(rows.tokens.open(rows.shards[shard]).ids[start : start + size]))
        return spans, found

    def find(self, documents: NDArray[np.uint64], end: int) -> Spans:
        """Return the pieces of ``documents`` in the samples before ``end``."""
        rows_of: dict[int, NDArray[np.int64]] = {}
        for number, part in enumerate(self._parts):
            rows = [np.zeros(0, np.int64), *self._rows_with(number, documents)]
            whole = np.unique(np.concatenate(rows)) + part.first_row
            rows_of[part.source] = np.append(rows_of.get(part.source, np.zeros(0, np.int64)), whole)
        if not any(map(len, rows_of.values())):
            return Spans.empty()
        found = list(self._samples_with(rows_of, end))
        spans = self._trace(np.concatenate(found))[0]
        return spans.at(np.isin(spans.document, documents, kind="sort"))

    def _existing(self, begin: int, end: int) -> NDArray[np.int64]:
        return np.arange(begin, end if self._total is None else min(end, self._total))

    def _samples_with(self, rows_of: dict[int, NDArray[np.int64]], end: int) -> Iterator[NDArray[np.int64]]:
        """Yield the samples before ``end`` that are one of the rows of their source."""
        for begin in range(0, end, _SAMPLES_AT_ONCE):
            samples = self._existing(begin, min(begin + _SAMPLES_AT_ONCE, end))
            sources, _, records = self._order.locate(samples)
            wanted = np.zeros(len(samples), np.bool_)
            for source, rows in rows_of.items():
                wanted |= (sources == source) & np.isin(records, rows)
            yield samples[wanted]

    def _rows_with(self, part: int, documents: NDArray[np.uint64]) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the rows of ``part`` with a piece of ``documents``, shard by shard."""
        rows = self._parts[part].rows
        for number, shard in enumerate(rows.shards):
            tokens = rows.tokens.open(shard)
            is_wanted = np.isin(tokens.hashes, documents, kind="sort")
            if is_wanted.any():
                index = rows.whole_index(number)
                pieces = np.flatnonzero(is_wanted[document_of(index.starts, tokens.offsets[:-1])])
                yield np.searchsorted(index.rows, pieces, side="right") - 1 + rows.first_row(number)

    def _trace(
        self, samples: NDArray[np.int64]
    ) -> tuple[Spans, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the pieces in ``samples``, and for each its part, its shard, and its first token in the shard."""
        sources, epochs, records = self._order.locate(samples)
        found = [_Pieces.none(), *self._pieces_of(sources, records)]
        columns: list[NDArray[Any]] = [np.concatenate(arrays) for arrays in zip(*found, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        pieces = _Pieces(*(column[order] for column in columns))
        spans = Spans(
            samples[pieces.places],
            epochs[pieces.places],
            pieces.units,
            pieces.hashes,
            pieces.positions,
            pieces.first_tokens,
            pieces.sizes,
            tuple(self._units),
        )
        return spans, pieces.parts, pieces.shards, pieces.starts

    def _pieces_of(self, sources: NDArray[np.int64], records: NDArray[np.int64]) -> Iterator[_Pieces]:
        """Yield the pieces of the rows ``records`` of ``sources``, shard by shard."""
        for number, part in enumerate(self._parts):
            within = records - part.first_row
            here = np.flatnonzero((sources == part.source) & (within >= 0) & (within < part.rows.num_rows))
            shards, rows = part.rows.locate(within[here])
            by_shard = np.argsort(shards, kind="stable")
            bounds = np.flatnonzero(np.diff(shards[by_shard], prepend=-1, append=-1))
            for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
                chosen = by_shard[first:last]
                shard = int(shards[chosen[0]])
                yield self._pieces_in(number, shard, rows[chosen], here[chosen])

    def _pieces_in(self, part: int, number: int, rows: NDArray[np.int64], places: NDArray[np.int64]) -> _Pieces:
        """Return the pieces of the ``rows`` of a shard, which belong to the samples at ``places``."""
        shard = self._shard(part, number)
        starts, sizes, counts = pieces_in(shard.index, rows)
        documents = document_of(starts, shard.begins)
        return _Pieces(
            np.repeat(places, counts),
            shard.units[documents],
            shard.hashes[documents],
            shard.positions[documents],
            starts - shard.begins[documents],
            sizes,
            np.full(len(starts), part),
            np.full(len(starts), number),
            starts,
        )

    def _open(self, part: int, number: int) -> _Shard:
        rows, name = self._parts[part].rows, self._names[self._parts[part].source]
        shard = rows.shards[number]
        tokens = rows.tokens.open(shard)
        known = ShardDocuments.of(rows.tokens.meta(shard)) if isinstance(rows.tokens, TokenCache) else None
        if known is None:
            units, positions = np.zeros(shard.num_documents, np.int64), np.full(shard.num_documents, NO_POSITION)
            names: Sequence[str] = [shard.name]
        else:
            units, positions, names = known.numbers, known.positions, known.units
        table = np.array([self._units.setdefault(UnitName(name, unit), len(self._units)) for unit in names], np.int64)
        return _Shard(rows.whole_index(number), tokens.offsets[:-1], tokens.hashes, table[units], positions)
