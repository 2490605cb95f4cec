"""Batches from documents that are read and tokenized while training."""

from __future__ import annotations

from contextlib import closing
from threading import Event, Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from holdfast.application.data.source_lanes import NO_OWNER, Interrupted, LaneAccess, SourceLanes
from holdfast.application.thread_pool import ThreadPool
from holdfast.domain.data.cursor import Cursor, LanePosition
from holdfast.domain.data.row_index import join_rows
from holdfast.domain.data.sample_order import RankShard
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.lane_reader import LanePlan, Wanted
    from holdfast.application.data.source_lanes import Dealt
    from holdfast.application.data.text_reader import TextReader
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.data.mixture import Mixture
    from holdfast.domain.data.row_index import LaidOutRows
    from holdfast.ports.process_group import KeyValueStore

_CLOSE_SECONDS = 5.0
_BATCHES_AT_ONCE = 32


class DealtRows(NamedTuple):
    """The rows of a batch: ``parts`` of them, each of one of ``sources``, that belong at the places ``filled`` int64.

    ``cursor`` is the position of the next batch, and ``num_rows`` counts the rows with those that stay empty.
    """

    parts: Sequence[LaidOutRows]
    sources: Sequence[int]
    filled: NDArray[np.int64]
    cursor: Cursor
    num_rows: int


class _Closable(Protocol):
    def close(self) -> None: ...


class StreamedBatches:
    """Deals the rows of ``readers`` in the order of ``mixture``, each document once per epoch of its source.

    Each source is read in lanes, a window ahead in a pool of threads; memory holds two windows for each lane and
    source. A rank reads its own lanes, and those of others where they have more rows left; ranks tell each other
    through ``group`` how many rows there are, so the samples depend neither on ranks nor on the sizes of batches. The
    source that runs out first ends the data, as in a cache: the last batch is smaller, with empty rows on ranks that
    have too few. Raises ``ConfigurationError`` if the number of ranks does not divide the number of lanes.
    """

    def __init__(
        self,
        readers: Sequence[TextReader],
        mixture: Mixture,
        plan: LanePlan,
        wanted: Wanted | None,
        share: RankShard,
        *,
        workers: int,
        group: KeyValueStore | None = None,
    ) -> None:
        self.readers = readers
        self._mixture = mixture
        self._plan = plan
        self._wanted = wanted
        self._share = share
        self._threads = workers
        self._group = group
        self._pool: ThreadPool | None = None
        self._turning = Lock()  # a pool that is being closed, in the thread that makes batches, takes no more threads
        self._stopping = Event()
        self._published: set[str] = set()
        refuse_ranks(share, plan)

    _further = 1
    """The positions of a source beside those of its lanes: that of the rows of the rest."""

    @property
    def threads(self) -> int:
        """Return the number of threads that read the lanes; any number makes the same batches."""
        return self._threads

    @threads.setter
    def threads(self, threads: int) -> None:
        with self._turning:
            self._threads = threads
            if self._pool is not None:
                self._pool.resize(threads)

    @property
    def max_threads(self) -> int:
        """Return the largest useful number of threads: one for each lane and source of this rank."""
        return self._plan.lanes // self._share.ranks * len(self.readers)

    def interrupt(self) -> None:
        """End the batches that are being made, from another thread, where they wait for other ranks."""
        self._stopping.set()

    def batches(self, cursor: Cursor) -> Generator[Batch]:
        """Yield the batches that follow ``cursor``; raises ``StateError`` if it has another number of lanes."""
        self.interrupt()
        self._stopping = Event()  # an interrupt of earlier batches, which may still end, is none of these
        published, self._published = self._published, set()
        if self._group is not None:
            for key in published:  # only now, as others may not have reached the end of earlier batches before
                self._group.forget(key)
        return self._batches(self._dealt(self._places(cursor), cursor.samples, self._stopping, is_traced=False))

    def _batches(self, dealing: Generator[DealtRows]) -> Generator[Batch]:
        with closing(dealing):
            for dealt in dealing:
                yield join_rows(dealt.parts, dealt.filled, (dealt.num_rows, self._plan.packing.length), dealt.cursor)

    def traced(self, cursor: Cursor) -> Generator[DealtRows]:
        """Yield the rows of all ranks in each batch that follows ``cursor``, with the origins of their pieces.

        No document is excluded. The order of the rows does not depend on the sizes of batches. Raises ``StateError`` as
        ``batches`` does.
        """
        whole = type(self)(
            self.readers, self._mixture, self._plan, self._wanted, RankShard(self._share.batch), workers=self._threads
        )
        places = whole._places(cursor)  # noqa: SLF001  of its own kind
        return whole._dealt(places, cursor.samples, Event(), is_traced=True)  # noqa: SLF001  as above

    def _places(self, cursor: Cursor) -> list[LanePosition]:
        expected = (self._plan.lanes + self._further) * len(self.readers)
        places = list(cursor.lanes or (LanePosition(),) * expected)
        if len(places) != expected:
            msg = f"the data are read in {expected} lanes, but the checkpoint has {len(places)}"
            raise StateError(msg)
        return places

    def _dealt(
        self, places: list[LanePosition], samples: int, stopping: Event, *, is_traced: bool
    ) -> Generator[DealtRows]:
        each = self._plan.lanes + self._further
        positions = [places[begin : begin + each] for begin in range(0, len(places), each)]
        pool = self._open_pool()
        group = self._group if self._share.ranks > 1 else None
        access = LaneAccess(pool, self._share, group, stopping, self._published)
        sources: dict[int, SourceLanes] = {}
        gives = self._mixture.gives_from(samples)
        try:
            for number, reader in enumerate(self.readers):
                if gives[number]:
                    sources[number] = SourceLanes(
                        reader, self._plan, self._wanted, positions[number], access, str(number), is_traced=is_traced
                    )
            yield from self._deal(sources, positions, samples)
        except Interrupted:
            return
        finally:
            self._close(pool, sources.values())

    def _open_pool(self) -> ThreadPool:
        with self._turning:
            self._pool = ThreadPool(self._threads, "holdfast-lane")
            return self._pool

    def _close(self, pool: ThreadPool, streams: Iterable[_Closable]) -> None:
        with self._turning:
            self._pool = None
        pool.close(_CLOSE_SECONDS)  # a read that hangs must not prevent the end of a run
        for stream in streams:
            stream.close()
        for reader in self.readers:
            reader.source.release()

    def _deal(
        self, sources: dict[int, SourceLanes], positions: Sequence[Sequence[LanePosition]], samples: int
    ) -> Iterator[DealtRows]:
        num_rows = self._share.batch
        for of_batch in self._sources_from(samples):
            dealt: list[tuple[int, Dealt]] = []
            done = 0
            while done < num_rows:
                found, end, ended = _within_epoch(sources, of_batch[done:])
                for number, of_source in found.items():
                    places = done + of_source
                    dealt += ((number, each) for each in sources[number].deal(samples + places, places))
                done += end
                if ended is not None and not sources[ended].turn():
                    break
            if done:
                samples += done
                lanes = [
                    sources[number].positions if number in sources else rest for number, rest in enumerate(positions)
                ]
                cursor = Cursor(samples, tuple(place for of_source in lanes for place in of_source))
                yield self._own(dealt, done, cursor)
            if done < num_rows:
                return

    def _sources_from(self, samples: int) -> Iterator[NDArray[np.int64]]:
        """Yield the source of each sample of each batch, int64 (rows,)."""
        size = _BATCHES_AT_ONCE * self._share.batch
        while True:
            sources, _ = self._mixture.locate(np.arange(samples, samples + size))
            yield from sources.reshape(_BATCHES_AT_ONCE, -1)
            samples += size

    def _own(self, dealt: Sequence[tuple[int, Dealt]], num_rows: int, cursor: Cursor) -> DealtRows:
        """Return the rows of this rank in a batch of ``num_rows`` rows that were ``dealt``."""
        ranks = self._share.ranks
        if ranks == 1:
            dealt_rows = [each.rows(0, len(each.places)) for _, each in dealt]
            places = np.concatenate([each.places for _, each in dealt])
            return DealtRows(dealt_rows, [source for source, _ in dealt], places, cursor, num_rows)
        size = -(-num_rows // ranks)
        rank_of = _share_out(dealt, num_rows, ranks)
        own = np.flatnonzero(rank_of == self._share.rank)
        parts, sources, filled = [], [], []
        for source, (places, _, rows) in dealt:
            here = np.flatnonzero(rank_of[places] == self._share.rank)
            for run in np.split(here, np.flatnonzero(np.diff(here) != 1) + 1) if len(here) else ():
                parts.append(rows(int(run[0]), int(run[-1]) + 1))
                sources.append(source)
                filled.append(places[run])
        places = np.concatenate(filled) if filled else np.zeros(0, np.int64)
        return DealtRows(parts, sources, np.searchsorted(own, places), cursor, size)


def refuse_ranks(share: RankShard, plan: LanePlan) -> None:
    """Raise ``ConfigurationError`` if the ranks of ``share`` cannot divide the lanes of ``plan`` evenly."""
    if plan.lanes % share.ranks:
        files = share.ranks * (4 if share.ranks <= 8 else 16)
        msg = (
            f"{share.ranks} processes cannot share the {counted(plan.lanes, 'lane')} in which these data are streamed: "
            f"train on a number that divides it, split the data into more files ({files} or more), or set "
            "data.mode=cache"
        )
        raise ConfigurationError(msg)


def _within_epoch(
    sources: dict[int, SourceLanes], of_rows: NDArray[np.int64]
) -> tuple[Mapping[int, NDArray[np.int64]], int, int | None]:
    """Return the next rows of each source, int64, up to where one ends its epoch, that place, and which; else None."""
    present = [int(of_rows[0])] if (of_rows == of_rows[0]).all() else np.unique(of_rows).tolist()
    found = {number: np.flatnonzero(of_rows == number) for number in present}
    end, ended = len(of_rows), None
    for number, places in found.items():
        left = sources[number].num_left(len(places))
        if left < len(places) and places[left] < end:
            end, ended = int(places[left]), number
    if ended is not None:
        found = {number: places[places < end] for number, places in found.items()}
    return {number: places for number, places in found.items() if len(places)}, end, ended


def _share_out(dealt: Sequence[tuple[int, Dealt]], num_rows: int, ranks: int) -> NDArray[np.int64]:
    """Return the rank that takes each row, int64: the one that read it while it has room, else one with room."""
    rank_of, size = np.full(num_rows, NO_OWNER), -(-num_rows // ranks)
    for _, (places, owner, _) in dealt:
        rank_of[places] = owner
    for rank in range(ranks):
        rank_of[np.flatnonzero(rank_of == rank)[size:]] = NO_OWNER
    room = size - np.bincount(rank_of[rank_of != NO_OWNER], minlength=ranks)
    homeless = np.flatnonzero(rank_of == NO_OWNER)
    rank_of[homeless] = np.repeat(np.arange(ranks), room)[: len(homeless)]
    return rank_of
