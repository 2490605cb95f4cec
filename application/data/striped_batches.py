"""Batches from documents that are read while training, in the order of runs that began before the current one."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, NoReturn, final

import numpy as np

from holdfast.application.data.lane_reader import LaneReader
from holdfast.application.data.rejected_records import ReadStatistics
from holdfast.application.data.streamed_batches import DealtRows, StreamedBatches
from holdfast.domain.data.cursor import Cursor, LanePosition
from holdfast.domain.data.no_text import no_text
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from concurrent.futures import Future
    from threading import Event

    from numpy.typing import NDArray

    from holdfast.application.data.lane_reader import Window
    from holdfast.application.data.text_reader import TextReader
    from holdfast.application.thread_pool import ThreadPool
    from holdfast.domain.data.row_index import LaidOutRows

_PATIENCE_SECONDS = 5.0
_BATCHES_AT_ONCE = 32


@final
class StripedBatches(StreamedBatches):
    """Deals rows from virtual lanes: sample ``g`` is row ``g // lanes`` of lane ``g % lanes``, on any number of ranks.

    Each lane reads each source by itself, and ``mixture`` decides which source its next row comes from. A rank reads
    its own lanes, a window ahead in a pool of threads; memory holds two windows for each lane and source. The source
    that runs out first ends the data; until it has ended in all its lanes, ended lanes give empty rows. Raises
    ``ConfigurationError`` if the number of ranks does not divide the number of lanes.
    """

    _further = 0

    def _dealt(
        self, places: list[LanePosition], samples: int, stopping: Event, *, is_traced: bool
    ) -> Generator[DealtRows]:
        del stopping  # no rank waits for another
        pool = self._open_pool()
        sources = self._given_by(samples)
        streams: dict[int, _LaneStream] = {}
        try:
            for number, place in enumerate(places):
                lane, source = divmod(number, len(self.readers))
                if lane % self._share.ranks == self._share.rank and source in sources:
                    streams[number] = _LaneStream(self._reader_of(number, is_traced=is_traced), place, pool)
            yield from self._deal_lanes(streams, places, samples)
        finally:
            self._close(pool, streams.values())

    def _reader_of(self, number: int, *, is_traced: bool) -> LaneReader:
        lane, source = divmod(number, len(self.readers))
        return LaneReader(self.readers[source], self._plan, self._wanted, lane, is_traced=is_traced)

    def _deal_lanes(
        self, streams: dict[int, _LaneStream], places: list[LanePosition], samples: int
    ) -> Iterator[DealtRows]:
        shares = self._shares(samples)
        while (ended := self._ended_source(streams, samples)) is None:
            parts: list[LaidOutRows] = []
            filled: list[NDArray[np.int64]] = []
            sources: list[int] = []
            for number, rows in next(shares):
                stream = streams[number]
                missing = stream.take(len(rows), parts)
                sources += [number % len(self.readers)] * (len(parts) - len(sources))
                places[number] = stream.place
                filled.append(rows[: len(rows) - missing] if missing else rows)
            samples += self._share.batch
            if self._share.ranks > 1 or parts:
                cursor = Cursor(samples, tuple(places))
                yield DealtRows(parts, sources, np.concatenate(filled), cursor, self._share.batch // self._share.ranks)
        if samples == 0:
            self._raise_no_text(self.readers[ended])

    def _raise_no_text(self, reader: TextReader) -> NoReturn:
        units, statistics = reader.source.units(), ReadStatistics()
        for unit in units:
            for _ in reader.tokens(unit, wanted=self._wanted, statistics=statistics):
                pass
        raise DataError(no_text([unit.name for unit in units], statistics.drops))

    def _ended_source(self, streams: dict[int, _LaneStream], samples: int) -> int | None:
        for source in self._given_by(samples):
            lanes = (stream for number, stream in streams.items() if number % len(self.readers) == source)
            if all(stream.has_ended for stream in lanes):
                return source
        return None

    def _given_by(self, samples: int) -> list[int]:
        gives = self._mixture.gives_from(samples // self._plan.lanes)
        return [source for source, is_given in enumerate(gives) if is_given]

    def _shares(self, samples: int) -> Iterator[Sequence[tuple[int, NDArray[np.int64]]]]:
        """Yield, for each batch, pairs of a lane's source and the rows of this rank that it gives."""
        step = _BATCHES_AT_ONCE * self._share.batch
        for begin in count(samples, step):
            ordinals, lanes = np.divmod(np.arange(begin, begin + step), self._plan.lanes)
            sources, _ = self._mixture.locate(ordinals)
            numbers = lanes * len(self.readers) + sources
            numbers = numbers[lanes % self._share.ranks == self._share.rank].reshape(_BATCHES_AT_ONCE, -1)
            orders = np.argsort(numbers, axis=1, kind="stable")
            yield from map(_grouped, np.take_along_axis(numbers, orders, axis=1), orders)


def _grouped(numbers: NDArray[np.int64], order: NDArray[np.int64]) -> Sequence[tuple[int, NDArray[np.int64]]]:
    begins = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist()]
    ends = [*begins[1:], len(order)]
    return [(number, order[a:b]) for number, a, b in zip(numbers[begins].tolist(), begins, ends, strict=True)]


@final
class _LaneStream:
    """The rows of one lane, whose next window ``pool`` prepares meanwhile."""

    def __init__(self, reader: LaneReader, start: LanePosition, pool: ThreadPool) -> None:
        reader.expect(start)
        self._windows = reader.windows(start)
        self._pool = pool
        self._start = start
        self._row = start.taken
        self._window: Window | None = None
        self._num_rows = 0
        self._coming: Future[Window | None] = pool.submit(next, self._windows, None)
        self._ended = False

    @property
    def has_ended(self) -> bool:
        """Return whether there are no more rows."""
        while not self._ended and self._row >= self._num_rows:
            self._turn()
        return self._ended

    @property
    def place(self) -> LanePosition:
        """Return the lane's position after the rows that were taken."""
        window = self._window
        if window is None:
            return self._start
        if self._row >= self._num_rows:
            return window.next_start
        return window.start._replace(taken=self._row)

    def take(self, num_rows: int, parts: list[LaidOutRows]) -> int:
        """Append the next ``num_rows`` rows to ``parts``; return the number missing at the end of the lane."""
        while num_rows and not self.has_ended:
            assert self._window is not None
            begin, self._row = self._row, min(self._row + num_rows, self._num_rows)
            parts.append(self._window.part(begin, self._row))
            num_rows -= self._row - begin
        return num_rows

    def close(self) -> None:
        """Close the files once no thread reads them any more."""
        self._coming.add_done_callback(lambda _: self._windows.close())

    def _turn(self) -> None:
        coming = self._coming.result()
        if coming is None:
            self._ended = True
            return
        if self._window is not None:
            self._row = 0
        self._window, self._num_rows = coming, coming.rows.num_rows
        self._coming = self._pool.submit(next, self._windows, None)
