"""Batches from documents that are read as they are needed."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, final

import numpy as np

from application.lane_reader import LaneReader, no_text
from application.workers import Workers
from domain.cursor import Cursor, Lane
from domain.errors import ConfigurationError, DataError, StateError
from domain.rows import join_rows

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from application.lane_reader import LanePlan, Wanted, Window
    from application.tokenize import TextReader
    from domain.batch import Batch
    from domain.mixture import Mixture
    from domain.order import Share
    from domain.rows import Rows

_PATIENCE_SECONDS = 5.0


@final
class StreamedBatches:
    """Deals rows from virtual lanes: sample ``g`` is row ``g // lanes`` of lane ``g % lanes``, on any number of ranks.

    Each lane reads each source by itself, and ``mixture`` says which one its next row is from. A rank reads the lanes
    that are its own, a window ahead in a pool of threads; memory holds two windows for each lane and source.
    The source that runs out first ends the data; until it has done so in all its lanes, those that have ended give
    empty rows.
    """

    def __init__(
        self,
        readers: Sequence[TextReader],
        mixture: Mixture,
        plan: LanePlan,
        wanted: Wanted | None,
        share: Share,
        *,
        workers: int,
    ) -> None:
        self._readers = readers
        self._mixture = mixture
        self._plan = plan
        self._wanted = wanted
        self._share = share
        self._workers = workers
        if plan.lanes % share.ranks:
            msg = (
                f"{share.ranks} processes cannot share the {plan.lanes} lanes in which these data are streamed: "
                "train on a number that divides it, split the data into more files, or set data.mode=cache"
            )
            raise ConfigurationError(msg)

    def batches(self, cursor: Cursor) -> Generator[Batch]:
        """Yield the batches that follow ``cursor``."""
        expected = self._plan.lanes * len(self._readers)
        places = list(cursor.lanes or (Lane(),) * expected)
        if len(places) != expected:
            msg = f"the data are read in {expected} lanes, but the checkpoint has {len(places)}"
            raise StateError(msg)
        pool = Workers(self._workers, "holdfast-lane")
        streams = {
            number: _LaneStream(self._reader_of(number), place, pool)
            for number, place in enumerate(places)
            if number // len(self._readers) % self._share.ranks == self._share.rank
            and number % len(self._readers) in self._sources_from(cursor.samples)
        }
        try:
            yield from self._deal(streams, places, cursor.samples)
        finally:
            pool.close(_PATIENCE_SECONDS)  # a read that hangs must not keep a run from ending
            for stream in streams.values():
                stream.close()

    def _reader_of(self, number: int) -> LaneReader:
        lane, source = divmod(number, len(self._readers))
        return LaneReader(self._readers[source], self._plan, self._wanted, lane)

    def _deal(self, streams: dict[int, _LaneStream], places: list[Lane], samples: int) -> Iterator[Batch]:
        while (ended := self._ended_source(streams, samples)) is None:
            numbers = self._numbers(samples)
            parts: list[Rows] = []
            filled: list[NDArray[np.int64]] = []
            for number, rows in _grouped(numbers):
                taken = streams[number].take(len(rows))
                places[number] = streams[number].place
                parts += taken
                filled.append(rows[: sum(map(len, taken))])
            samples += self._share.batch
            if self._share.ranks > 1 or parts:
                shape = len(numbers), self._plan.packing.length
                yield join_rows(parts, np.concatenate(filled), shape, Cursor(samples, tuple(places)))
        if samples == 0:
            raise DataError(no_text(self._readers[ended].source.units()))

    def _ended_source(self, streams: dict[int, _LaneStream], samples: int) -> int | None:
        for source in self._sources_from(samples):
            lanes = (stream for number, stream in streams.items() if number % len(self._readers) == source)
            if all(stream.has_ended for stream in lanes):
                return source
        return None

    def _sources_from(self, samples: int) -> list[int]:
        gives = self._mixture.gives_from(samples // self._plan.lanes)
        return [source for source, is_given in enumerate(gives) if is_given]

    def _numbers(self, samples: int) -> NDArray[np.int64]:
        """Return which of the lanes' sources each row of this rank's share of a batch comes from."""
        ordinals, lanes = np.divmod(np.arange(samples, samples + self._share.batch), self._plan.lanes)
        sources, _ = self._mixture.locate(ordinals)
        numbers: NDArray[np.int64] = lanes * len(self._readers) + sources
        own: NDArray[np.int64] = numbers[lanes % self._share.ranks == self._share.rank]
        return own


def _grouped(numbers: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each number that occurs, and where."""
    order = np.argsort(numbers, kind="stable")
    begins = np.flatnonzero(np.diff(numbers[order], prepend=-1)).tolist()
    for begin, end in pairwise([*begins, len(order)]):
        yield int(numbers[order[begin]]), order[begin:end]


@final
class _LaneStream:
    """The rows of one lane, its next window being made in ``pool`` meanwhile."""

    def __init__(self, reader: LaneReader, start: Lane, pool: Workers) -> None:
        self._windows = reader.windows(start)
        self._pool = pool
        self._start = start
        self._row = start.taken
        self._window: Window | None = None
        self._coming: Future[Window | None] = pool.submit(next, self._windows, None)
        self._ended = False

    @property
    def has_ended(self) -> bool:
        """Return whether there is no further row."""
        while not self._ended and (self._window is None or self._row >= len(self._window.rows)):
            self._turn()
        return self._ended

    @property
    def place(self) -> Lane:
        """Return where the lane stands behind the rows that were taken."""
        window = self._window
        if window is None:
            return self._start
        if self._row >= len(window.rows):
            return window.next_start
        return Lane(window.start.epoch, window.start.unit, window.start.position, self._row)

    def take(self, num_rows: int) -> list[Rows]:
        """Return the next rows, as many as there are, of one window or several."""
        taken: list[Rows] = []
        while num_rows and not self.has_ended:
            assert self._window is not None
            part = self._window.rows.part(self._row, min(self._row + num_rows, len(self._window.rows)))
            taken.append(part)
            self._row += len(part)
            num_rows -= len(part)
        return taken

    def close(self) -> None:
        """Let go of the files, once nothing reads any more."""
        self._coming.add_done_callback(lambda _: self._windows.close())

    def _turn(self) -> None:
        coming = self._coming.result()
        if coming is None:
            self._ended = True
            return
        if self._window is not None:
            self._row = 0
        self._window = coming
        self._coming = self._pool.submit(next, self._windows, None)
