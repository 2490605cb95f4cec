"""Finds the documents in the samples of a run that streams its data, by reading them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from holdfast.application.data.trace_samples import Tracer
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.document_spans import Spans, UnitName

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.streamed_batches import DealtRows, StreamedBatches
    from holdfast.application.data.striped_batches import StripedBatches
    from holdfast.application.data.trace_samples import Ids
    from holdfast.domain.data.packed_rows import LaidOutRows


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
