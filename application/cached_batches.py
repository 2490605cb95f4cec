"""Batches from packed rows that are at hand by number."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

import numpy as np

from domain.cursor import Cursor
from domain.errors import DataError
from domain.order import SampleOrder
from domain.row_index import NO_ROW, read_rows

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from application.packed_rows import PackedRows
    from domain.batch import Batch
    from domain.mixture import Mixture
    from domain.order import Share
    from domain.row_index import RowPlace


@final
class CachedBatches:
    """Deals the rows of ``sources`` in the order of ``mixture``, each at the same cost wherever a run stands.

    ``epochs`` None goes on for ever. The last batch of finite data is smaller, but of one size on all ranks: rows that
    there are too few of for that are empty.
    """

    def __init__(
        self, sources: Sequence[PackedRows], mixture: Mixture, share: Share, *, length: int, epochs: int | None
    ) -> None:
        self._sources = sources
        self._mixture = mixture
        self._share = share
        self._length = length
        self._epochs = epochs

    def batches(self, cursor: Cursor) -> Generator[Batch]:
        """Yield the batches that follow ``cursor``; raises ``DataError`` if there is no text at all."""
        sizes = tuple(source.num_rows for source in self._sources)
        if not any(sizes):
            msg = "none of the documents holds any text to train on: check data.path and data.holdout"
            raise DataError(msg)
        order = SampleOrder(sizes, self._mixture)
        total = None if self._epochs is None else order.total(self._epochs)
        begin = cursor.samples
        while total is None or begin < total:
            end = begin + self._share.batch if total is None else min(begin + self._share.batch, total)
            places = self._places(order, self._samples(begin, end), end)
            begin = end
            yield read_rows(places, self._length, Cursor(end))

    def _samples(self, begin: int, end: int) -> range:
        ranks = self._share.ranks
        return replace(self._share, batch=-(-(end - begin) // ranks) * ranks).of(begin)

    def _places(self, order: SampleOrder, samples: range, end: int) -> list[RowPlace]:
        there = min(len(samples), max(0, end - samples.start))
        sources, _, records = order.locate(np.arange(samples.start, samples.start + there))
        places: list[RowPlace] = [NO_ROW] * len(samples)
        for source in np.unique(sources).tolist():
            of_source = np.flatnonzero(sources == source)
            rows = self._sources[source].at(records[of_source])
            for place, row in zip(of_source.tolist(), rows, strict=True):
                places[place] = row
        return places
