"""Finds the documents in the samples of a run, and the samples with a document, from the order of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, final

import numpy as np

from holdfast.application.data.shard_meta import ShardDocuments
from holdfast.domain.data.batch import NO_POSITION, Spans, UnitName
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.exclusion import document_of
from holdfast.domain.data.row_index import pieces_in
from holdfast.ports.token_cache import TokenCache
from holdfast.ports.tokenizer import ShowsSpecialTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.cached_batches import CachedBatches
    from holdfast.application.data.row_packer import PackedRows
    from holdfast.application.data.streamed_batches import DealtRows, StreamedBatches
    from holdfast.application.data.striped_batches import StripedBatches
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.data.row_index import LaidOutRows, RowIndex
    from holdfast.ports.tokenizer import Tokenizer

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
        traced = []
        for part, shard, start, size in zip(
            parts.tolist(), shards.tolist(), starts.tolist(), spans.num_tokens.tolist(), strict=True
        ):
            rows = self._parts[part].rows
            traced.append(np.array(rows.tokens.open(rows.shards[shard]).ids[start : start + size]))
        return spans, traced

    def find(self, documents: NDArray[np.uint64], end: int) -> Spans:
        """Return the pieces of ``documents`` in the samples before ``end``."""
        rows_of: dict[int, NDArray[np.int64]] = {}
        for number, part in enumerate(self._parts):
            rows = [np.zeros(0, np.int64), *self._rows_with(number, documents)]
            whole = np.unique(np.concatenate(rows)) + part.first_row
            rows_of[part.source] = np.append(rows_of.get(part.source, np.zeros(0, np.int64)), whole)
        if not any(map(len, rows_of.values())):
            return Spans.empty()
        samples = list(self._samples_with(rows_of, end))
        spans = self._trace(np.concatenate(samples))[0]
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
        parts = [_Pieces.none(), *self._pieces_of(sources, records)]
        columns: list[NDArray[Any]] = [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
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


@final
class StreamTracer(Tracer):
    """Reads the rows again, from the last of ``cursors`` that is not after the first sample, or from the start.

    ``cursors`` are positions that the run has had, such as those of its checkpoints, and may grow; ``names`` are those
    of its sources. ``show`` gets the number of samples read and the number to read. With ``follows``, the data stay
    open between calls that continue where the last one ended, until ``close``.
    """

    def __init__(
        self,
        batches: StreamedBatches | StripedBatches,
        names: Sequence[str],
        cursors: Sequence[Cursor],
        show: Callable[[int, int], object] = lambda _done, _total: None,
        *,
        follows: bool = False,
    ) -> None:
        self._batches = batches
        self._follows = follows
        self._open: Generator[DealtRows] | None = None
        self._cursors = cursors
        self._reached = Cursor()  # by the last call, as the next one often continues there
        self._show = show
        units = [(name, [unit.name for unit in reader.source.units()]) for name, reader in zip(
            names, batches.readers, strict=True
        )]  # fmt: skip
        self._units = tuple(UnitName(name, unit) for name, found in units for unit in found)
        self._first_units = np.cumsum([0, *(len(found) for _, found in units)])

    def spans(self, begin: int, end: int) -> Spans:
        """Return the pieces of documents in the samples from ``begin`` to before ``end``, fewer at the end of data."""
        return self._joined([spans for spans, _ in self._read(begin, end)])

    def texts(self, begin: int, end: int) -> tuple[Spans, Ids]:
        """Return ``spans``, and the token ids of each piece, unsigned (its tokens,)."""
        read = [(spans, rows) for spans, rows in self._read(begin, end) if len(spans)]
        ids = []
        for spans, rows in read:
            places = (spans.sample, spans.column, spans.num_tokens)
            for sample, column, size in zip(*(array.tolist() for array in places), strict=True):
                ids.append(rows[sample][column : column + size])
        return self._joined([spans for spans, _ in read]), ids

    def find(self, documents: NDArray[np.uint64], end: int) -> Spans:
        """Return the pieces of ``documents`` in the samples before ``end``; all data up to there are read again."""
        found = (spans.at(np.isin(spans.document, documents, kind="sort")) for spans, _ in self._read(0, end))
        return self._joined([spans for spans in found if len(spans)])

    def _joined(self, parts: Sequence[Spans]) -> Spans:
        return Spans.join(parts) if parts else Spans.empty(self._units)

    def _read(self, begin: int, end: int) -> Iterator[tuple[Spans, dict[int, NDArray[np.unsignedinteger]]]]:
        """Yield the spans of each batch between ``begin`` and ``end``, and the tokens of each sample in it."""
        known = [each for each in (Cursor(), *self._cursors, self._reached) if each.samples <= begin]
        cursor = max(known, key=lambda each: each.samples)
        first = done = cursor.samples
        batches = self._opened_at(cursor)
        while done < end and (dealt := next(batches, None)) is not None:
            start, done, self._reached = done, dealt.cursor.samples, dealt.cursor
            if done > begin:
                yield self._spans_of(dealt, start, begin, end)
            self._show(min(done, end) - first, end - first)
        if not self._follows:
            self.close()

    def _opened_at(self, cursor: Cursor) -> Generator[DealtRows]:
        """Return the rows from ``cursor`` on; those that are open continue if they are there."""
        if self._open is None or cursor is not self._reached:
            self.close()
            self._open = self._batches.traced(cursor)
        return self._open

    def close(self) -> None:
        """Close the data; the next call opens them again."""
        if self._open is not None:
            self._open.close()
        self._open = None

    def _spans_of(
        self, dealt: DealtRows, start: int, begin: int, end: int
    ) -> tuple[Spans, dict[int, NDArray[np.unsignedinteger]]]:
        """Return the spans of ``dealt``, whose first sample is ``start``, between ``begin`` and ``end``."""
        samples = start + dealt.filled
        counts = [part.num_rows for part in dealt.parts]
        of_part = np.split(samples, np.cumsum(counts)[:-1]) if counts else []
        spans = self._joined([
            self._part(part, source, numbers)
            for part, source, numbers in zip(dealt.parts, dealt.sources, of_part, strict=True)
        ])  # fmt: skip
        order = np.argsort(spans.sample, kind="stable")
        spans = spans.at(order)
        rows: dict[int, NDArray[np.unsignedinteger]] = {}
        for part, numbers in zip(dealt.parts, of_part, strict=True):
            rows.update(zip(numbers.tolist(), part.ids, strict=True))
        return spans.at((begin <= spans.sample) & (spans.sample < end)), rows

    def _part(self, part: LaidOutRows, source: int, samples: NDArray[np.int64]) -> Spans:
        assert part.origins is not None
        epoch, units, positions, hashes, first_tokens = part.origins
        ends = np.append(part.starts[1:], 0)
        is_last = np.zeros(len(part.starts), np.bool_)
        is_last[np.cumsum(part.counts)[part.counts > 0] - 1] = True
        row_ends = np.repeat(part.lengths, part.counts)
        return Spans(
            np.repeat(samples, part.counts),
            np.full(len(units), epoch),
            units + self._first_units[source],
            hashes,
            positions,
            first_tokens,
            np.where(is_last, row_ends, ends) - part.starts,
            self._units,
        )


class ShownPart(NamedTuple):
    """A part of a document as ``text``, with its special tokens, and whether it is trained on."""

    text: str
    is_trained: bool


ShownRow = list[list[ShownPart]]
"""The documents of a row, each as its parts in order."""


def shown_rows(batch: Batch, tokenizer: Tokenizer, num_rows: int) -> list[ShownRow]:
    """Return the first ``num_rows`` rows of ``batch`` that are not empty."""
    decode = tokenizer.decode_all if isinstance(tokenizer, ShowsSpecialTokens) else tokenizer.decode
    length = batch.input_ids.shape[1]
    rows: list[ShownRow] = []
    for row in np.flatnonzero(batch.row_lengths)[:num_rows].tolist():
        ids, targets, size = batch.input_ids[row], batch.loss_mask[row], int(batch.row_lengths[row])
        here = batch.starts[(batch.starts >= row * length) & (batch.starts < (row + 1) * length)] - row * length
        edges = [*here.tolist(), size]
        rows.append([
            [ShownPart(decode(ids[part].tolist()), is_trained) for part, is_trained in _runs(targets, begin, end)]
            for begin, end in pairwise(edges)
        ])  # fmt: skip
    return rows


def _runs(targets: NDArray[np.bool_], begin: int, end: int) -> Sequence[tuple[slice, bool]]:
    """Return the longest parts from ``begin`` to before ``end`` in which all tokens are targets, or none is."""
    changes = np.flatnonzero(np.diff(targets[begin:end])) + begin + 1
    edges = [begin, *changes.tolist(), end]
    return [(slice(a, b), bool(targets[a])) for a, b in pairwise(edges) if a < b]
