"""Batches from a token cache, whose rows are read by number."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, final

import numpy as np

from holdfast.domain.data.cursor import Cursor
from holdfast.domain.data.no_text import all_dropped
from holdfast.domain.data.row_index import NO_ROW, read_rows
from holdfast.domain.data.sample_order import SampleOrder
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.reference_column import ReferenceColumn
    from holdfast.application.data.row_packer import Rows
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.data.mixture import Mixture
    from holdfast.domain.data.row_index import RowPlace
    from holdfast.domain.data.sample_order import EarlierSize, RankShard

# the limits of one read, in whole batches: more rows take no more calls of NumPy, but each may be in another shard,
# which takes a file descriptor
_MOST_SAMPLES = 128
_MOST_TOKENS = 1 << 18


@final
class CachedBatches:
    """Deals the rows of ``sources`` in the order of ``mixture``, at the same cost at any position of a run.

    With ``epochs`` None the data never end; ``grown`` lists the smaller sizes that an only source had in earlier
    epochs. The last batch of finite data is smaller. It has the same size on all ranks, with empty rows on ranks that
    have too few. ``threads`` is 0, as rows are accessed directly.
    """

    def __init__(
        self,
        sources: Sequence[Rows],
        mixture: Mixture,
        share: RankShard,
        *,
        length: int,
        epochs: int | None,
        grown: tuple[EarlierSize, ...] = (),
    ) -> None:
        self.sources = sources
        self.mixture = mixture
        self._share = share
        self._length = length
        self.epochs = epochs
        self.grown = grown
        self.threads = 0
        self.max_threads = 0

    def with_reference(self, reference: ReferenceColumn) -> CachedBatches:
        """Return the same batches of preferences, with the log-probabilities of ``reference``."""
        sources = [source.with_reference(reference) for source in self.sources]
        return CachedBatches(
            sources, self.mixture, self._share, length=self._length, epochs=self.epochs, grown=self.grown
        )

    @property
    def num_rows(self) -> int:
        """Return the number of rows of all sources."""
        return sum(source.num_rows for source in self.sources)

    def order(self) -> tuple[SampleOrder, int | None]:
        """Return the order of the rows and the number of samples, None without an end.

        Raises ``DataError`` if no row is left to train on.
        """
        sizes = tuple(source.num_rows for source in self.sources)
        if not any(sizes):
            if any(source.dropped for source in self.sources):
                raise DataError(all_dropped(self._length))
            msg = "no document is left to train on: check data.path and data.holdout"
            raise DataError(msg)
        order = SampleOrder(sizes, self.mixture, self.grown)
        return order, None if self.epochs is None else order.total(self.epochs)

    def interrupt(self) -> None:
        """Do nothing, as no batch waits for another process."""

    def batches(self, cursor: Cursor) -> Generator[Batch]:
        """Yield the batches that follow ``cursor``; raises ``DataError`` if no row is left to train on."""
        order, total = self.order()
        for block in self._blocks(self._shares(cursor.samples, total)):
            read = self._read(order, block)
            for batch, (_, end) in zip(read.split(len(block[0][0])), block, strict=True):
                yield replace(batch, cursor=Cursor(end))

    def _shares(self, begin: int, total: int | None) -> Iterator[tuple[range, int]]:
        """Yield this rank's samples of each batch from ``begin`` on, and where the batch ends."""
        while total is None or begin < total:
            end = begin + self._share.batch if total is None else min(begin + self._share.batch, total)
            ranks = self._share.ranks
            yield replace(self._share, batch=-(-(end - begin) // ranks) * ranks).of(begin), end
            begin = end

    def _blocks(self, shares: Iterator[tuple[range, int]]) -> Iterator[Sequence[tuple[range, int]]]:
        """Yield ``shares`` in blocks to be read together, each twice the last, so the first batch is ready soon."""
        tokens = self._share.batch // self._share.ranks * self._length
        most = max(1, min(_MOST_SAMPLES // self._share.batch, _MOST_TOKENS // tokens))
        size = 1
        while block := list(islice(shares, size)):
            yield block
            size = min(2 * size, most)

    def _read(self, order: SampleOrder, block: Sequence[tuple[range, int]]) -> Batch:
        """Return the rows of a block; only at the end of all data are there fewer than requested."""
        there = [np.arange(samples.start, max(samples.start, min(samples.stop, end))) for samples, end in block]
        sources, _, records = order.locate(np.concatenate(there))
        num_missing = sum(len(samples) for samples, _ in block) - len(records)
        return read_rows([*self._places(sources, records), *[NO_ROW] * num_missing], self._length)

    def _places(self, sources: NDArray[np.int64], records: NDArray[np.int64]) -> Sequence[RowPlace]:
        used: list[int] = np.unique(sources).tolist()
        if len(used) == 1:
            return self.sources[used[0]].at(records)
        places: list[RowPlace] = [NO_ROW] * len(records)
        for source in used:
            of_source = np.flatnonzero(sources == source)
            rows = self.sources[source].at(records[of_source])
            for place, row in zip(of_source.tolist(), rows, strict=True):
                places[place] = row
        return places
