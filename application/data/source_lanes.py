"""The lanes in which one source is streamed, and the order in which they give rows."""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np

from holdfast.application.data.lane_reader import LaneDocuments, LaneReader, Window
from holdfast.application.data.rejected_records import ReadStatistics
from holdfast.domain.data.cursor import LANE_ENDED, LanePosition
from holdfast.domain.data.no_text import all_dropped, no_text
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from threading import Event

    from numpy.typing import NDArray

    from holdfast.application.data.lane_reader import LanePlan, Wanted
    from holdfast.application.data.text_reader import TextReader
    from holdfast.application.thread_pool import ThreadPool
    from holdfast.domain.data.row_index import LaidOutRows
    from holdfast.domain.data.sample_order import RankShard
    from holdfast.ports.process_group import KeyValueStore

NO_OWNER = -1
_PATIENCE_SECONDS = 10.0
_LOOK_SECONDS = 0.002
_PUBLISHED = 1000  # windows of a lane: others are behind by the batches that they prepare ahead, or read by themselves


class Interrupted(Exception):
    """The batches are not needed any more."""


class Dealt(NamedTuple):
    """Rows that ``places`` int64 of a batch get: ``rows(begin, end)`` returns part of them, padded.

    ``owner`` is the rank that has read them, ``NO_OWNER`` if each has.
    """

    places: NDArray[np.int64]
    owner: int
    rows: Callable[[int, int], LaidOutRows]


@dataclass(frozen=True, slots=True, eq=False)
class LaneAccess:
    """What reads lanes: the threads of ``pool``, and ``group`` to hear from other ranks of ``share``, None without.

    ``published`` are the keys under which this rank shows texts. After ``stopping`` it publishes none.
    """

    pool: ThreadPool
    share: RankShard
    group: KeyValueStore | None
    stopping: Event
    published: set[str] = field(default_factory=set)

    def wait_for(self, key: str, seconds: float) -> dict[str, Any] | None:
        """Return what another rank has published, None if it takes longer; raises ``Interrupted``."""
        deadline = time.monotonic() + seconds
        assert self.group is not None
        while (text := self.group.lookup(key)) is None:
            if time.monotonic() >= deadline:
                return None
            if self.stopping.wait(_LOOK_SECONDS):
                raise Interrupted
        state: dict[str, Any] = json.loads(text)
        return state


@final
class SourceLanes:
    """Deals the rows of one source: each epoch gives every row of every lane once, and then what filled no row.

    Sample ``g`` gets the next row of lane ``live[g % len(live)]``, where ``live`` are the lanes in which a row was
    always found so far in the epoch. What is left at the ends of the lanes is packed together. All ranks compute this
    order of all rows, whoever reads them: ``access`` shares the sizes of windows. ``positions`` are those of the lanes
    and then of the rows of the rest.
    """

    def __init__(
        self,
        reader: TextReader,
        plan: LanePlan,
        wanted: Wanted | None,
        positions: Sequence[LanePosition],
        access: LaneAccess,
        name: str,
        *,
        is_traced: bool,
    ) -> None:
        self._reader, self._plan, self._wanted = reader, plan, wanted
        self.epoch = positions[0].epoch
        self._lanes = [
            _Lane(LaneReader(reader, plan, wanted, lane, is_traced=is_traced), place, access, f"{name} {lane}", lane)
            for lane, place in enumerate(positions[:-1])
        ]
        self._rest_taken = positions[-1].taken
        self._rest: Window | None = None
        self._live = np.array([lane.number for lane in self._lanes if not lane.is_over], np.int64)
        self.positions = list(positions)
        self._is_whole = all(place == LanePosition(self.epoch) for place in positions)
        self._num_rows = 0  # dealt in this epoch

    def num_left(self, most: int) -> int:
        """Return how many rows are left in the epoch, at most ``most``."""
        live = [self._lanes[number] for number in self._live.tolist()]
        share = -(-most // max(1, len(live)))  # so that no lane is read far ahead for the others
        if sum(lane.num_left(share) for lane in live) >= most:
            return most
        num_known = 0
        for lane in live:
            num_known += lane.num_left(most - num_known)
            if num_known >= most:
                return most
        return min(most, num_known + self._all_rest().rows.num_rows - self._rest_taken)

    def deal(self, samples: NDArray[np.int64], places: NDArray[np.int64]) -> Iterator[Dealt]:
        """Yield the rows for ``samples`` int64, as many as are left in the epoch, at ``places`` int64 of a batch."""
        self._num_rows += len(samples)
        done = 0
        while done < len(samples):
            if not len(self._live):
                yield self._deal_rest(places[done:])
                return
            by_lane = _by_lane(samples[done:], self._live)
            lanes = [(self._lanes[number], of_lane) for number, of_lane in by_lane.items()]
            missing = [
                (of_lane[left], lane) for lane, of_lane in lanes if (left := lane.num_left(len(of_lane))) < len(of_lane)
            ]
            cut, ended = min(missing, key=lambda each: each[0], default=(len(samples) - done, None))
            for lane, of_lane in lanes:
                here = of_lane[: bisect_left(of_lane, cut)]
                if here:
                    yield from lane.take(places[done:][here])
                    self.positions[lane.number] = lane.position
            if ended is not None:
                self._end(ended)
            done += cut

    def turn(self) -> bool:
        """Begin the next epoch once all rows are dealt; return whether there is one.

        Raises ``DataError`` if a whole epoch had no row.
        """
        if self._is_whole and not self._num_rows:
            self._raise_no_row()
        if self._plan.epochs is not None and self.epoch + 1 >= self._plan.epochs:
            return False
        self.epoch += 1
        self._rest, self._rest_taken, self._num_rows, self._is_whole = None, 0, 0, True
        for lane in self._lanes:
            lane.turn(self.epoch)
        self._live = np.arange(len(self._lanes))
        self.positions[:] = [LanePosition(self.epoch)] * len(self.positions)
        return True

    def close(self) -> None:
        """Close the files once no thread reads them any more."""
        for lane in self._lanes:
            lane.close()

    def _end(self, lane: _Lane) -> None:
        lane.is_over = True
        self._live = self._live[self._live != lane.number]
        self.positions[lane.number] = lane.position

    def _deal_rest(self, places: NDArray[np.int64]) -> Dealt:
        window, begin = self._all_rest(), self._rest_taken
        self._rest_taken += len(places)
        self.positions[-1] = LanePosition(self.epoch, taken=self._rest_taken)
        return Dealt(places, NO_OWNER, lambda first, end: window.part(begin + first, begin + end))

    def _all_rest(self) -> Window:
        if self._rest is None:
            documents = LaneDocuments.join([lane.rest() for lane in self._lanes])
            rows = self._lanes[0].reader.lay_out(documents, len(self._lanes), self.epoch)
            place = LanePosition(self.epoch)
            self._rest = Window.of(rows, place, place)
        return self._rest

    def _raise_no_row(self) -> None:
        units, statistics, has_documents = self._reader.source.units(), ReadStatistics(), False
        for unit in units:
            for group in self._reader.tokens(unit, wanted=self._wanted, statistics=statistics):
                has_documents = has_documents or len(group.offsets) > 1
        if has_documents and getattr(self._plan.packing, "overflow", "split") == "drop":
            raise DataError(all_dropped(self._plan.packing.length))
        raise DataError(no_text([unit.name for unit in units], statistics.drops))


def _by_lane(samples: NDArray[np.int64], live: NDArray[np.int64]) -> Mapping[int, Sequence[int]]:
    """Return which of the increasing ``samples`` each of the lanes ``live`` gives, as their indices in order."""
    first, size = int(samples[0]), len(live)
    if int(samples[-1]) - first == len(samples) - 1:
        turns = range(min(size, len(samples)))
        return {int(live[(first + turn) % size]): range(turn, len(samples), size) for turn in turns}
    places: dict[int, list[int]] = {}
    for place, number in enumerate(live[samples % size].tolist()):  # sorting by numpy would give up the interpreter
        places.setdefault(number, []).append(place)
    return places


class _Known(NamedTuple):
    """What is known of a window: its start, its rows, the next start, and the rest in the last one of an epoch."""

    start: LanePosition
    num_rows: int
    next_start: LanePosition
    rest: LaneDocuments | None
    window: Window | None


@final
class _Lane:
    """The rows of one lane, read here or by another rank."""

    def __init__(self, reader: LaneReader, place: LanePosition, access: LaneAccess, key: str, number: int) -> None:
        self.reader, self.number = reader, number
        self.owner = number % access.share.ranks
        self.is_over = place.taken == LANE_ENDED
        self._access, self._key = access, key
        self._place = place._replace(taken=0)  # where the first window that is not known begins
        self._taken = max(0, place.taken)
        self._known: deque[_Known] = deque()
        self._left = -self._taken  # of the rows that are known
        self._hears = True
        is_own = self.owner == access.share.rank
        self._stream = _WindowStream(reader, self._place, access, key) if is_own else None
        self._others: _WindowStream | None = None  # reads rows of windows that another rank has measured

    def num_left(self, most: int) -> int:
        """Return the number of rows that are left in the epoch, at most ``most``."""
        while self._left < most and not self._is_complete:
            self._learn()
        return min(self._left, most)

    def take(self, places: NDArray[np.int64]) -> Iterator[Dealt]:
        """Yield the next rows, of which there are enough, for ``places``."""
        self._left -= len(places)
        done = 0
        while done < len(places):
            known = self._known[0]
            begin, self._taken = self._taken, min(known.num_rows, self._taken + len(places) - done)
            if self._taken > begin:
                yield self._dealt(known, begin, places[done : done + self._taken - begin])
            done += self._taken - begin
            if done < len(places) or (self._taken == known.num_rows and known.rest is None):
                self._known.popleft()
                self._taken = 0

    @property
    def position(self) -> LanePosition:
        """Return the position after the rows that were taken."""
        if not self._known:
            return self._place._replace(taken=self._taken)
        known = self._known[0]
        if self._taken < known.num_rows:
            return known.start._replace(taken=self._taken)
        return known.next_start._replace(taken=LANE_ENDED if self.is_over else 0)

    def rest(self) -> LaneDocuments:
        """Return what fills no row at the end of the epoch."""
        while not self._is_complete:
            self._learn()
        rest = self._known[-1].rest
        assert rest is not None
        return rest

    def turn(self, epoch: int) -> None:
        """Go on with the beginning of ``epoch``."""
        self._known.clear()
        self._place, self._taken, self._left, self.is_over = LanePosition(epoch), 0, 0, False
        if self.owner != self._access.share.rank:
            self.close()

    def close(self) -> None:
        """Close the files once no thread reads them any more."""
        for stream in (self._stream, self._others):
            if stream is not None:
                stream.close()
        self._stream = self._others = None

    @property
    def _is_complete(self) -> bool:
        return bool(self._known) and self._known[-1].rest is not None

    def _learn(self) -> None:
        known = self._heard() or self._read(self._place)
        self._known.append(known)
        self._left += known.num_rows
        self._place = known.next_start

    def _heard(self) -> _Known | None:
        """Return what another rank says of the next window, None for a lane of this rank or without an answer."""
        if self.owner == self._access.share.rank or self._access.group is None:
            return None
        # a rank that was silent once, or whose texts are gone, is not waited for at each window
        seconds = _PATIENCE_SECONDS if self._hears else 0.0
        record = self._access.wait_for(_key_of(self._key, self._place), seconds)
        self._hears = record is not None
        if record is None:
            return None
        rest = None if record["rest"] is None else LaneDocuments.from_json(record["rest"])
        return _Known(self._place, record["rows"], LanePosition(*record["next"]), rest, None)

    def _read(self, place: LanePosition) -> _Known:
        """Return the window that begins at ``place``, read here."""
        if self._stream is None:
            self._stream = _WindowStream(self.reader.unobserved(), place, self._access, None)
        while (window := self._stream.next()) is not None:
            if window.start == place:
                return _Known(place, window.rows.num_rows, window.next_start, window.rest, window)
        msg = f"the data have changed while they were read: the rows at {tuple(place)} of a lane are not there again"
        raise DataError(msg)

    def _dealt(self, known: _Known, begin: int, places: NDArray[np.int64]) -> Dealt:
        def rows(first: int, end: int) -> LaidOutRows:
            window = known.window or self._held(known)
            return window.part(begin + first, begin + end)

        return Dealt(places, self.owner, rows)

    def _held(self, known: _Known) -> Window:
        """Return the window of another rank's lane, read here."""
        last = None if self._others is None else self._others.last
        if self._others is None or last is None or known.start not in (last.start, last.next_start):
            if self._others is not None:
                self._others.close()
            self._others, last = _WindowStream(self.reader.unobserved(), known.start, self._access, None), None
        window = last if last is not None and last.start == known.start else self._others.next()
        if window is None or window.start != known.start or window.rows.num_rows != known.num_rows:
            msg = f"two processes read different rows at {tuple(known.start)} of a lane: read the data from one place"
            raise DataError(msg)
        return window


@final
class _WindowStream:
    """The windows of one lane, the next one prepared by a thread; other ranks hear of them by ``key``, if any."""

    def __init__(self, reader: LaneReader, start: LanePosition, access: LaneAccess, key: str | None) -> None:
        reader.expect(start)
        self._windows = reader.windows(start)
        self._access, self._key = access, key
        self._published: deque[str] = deque()
        self.last: Window | None = None
        self._coming: Future[Window | None] = access.pool.submit(self._prepare)

    def next(self) -> Window | None:
        """Return the next window, None after the last epoch."""
        self.last = self._coming.result()
        if self.last is not None:
            self._coming = self._access.pool.submit(self._prepare)
        return self.last

    def close(self) -> None:
        """Close the files once no thread reads them any more."""
        self._coming.add_done_callback(lambda _: self._windows.close())

    def _prepare(self) -> Window | None:
        window = next(self._windows, None)
        group = None if self._access.stopping.is_set() else self._access.group
        if window is not None and group is not None and self._key is not None:
            rest = None if window.rest is None else window.rest.to_json()
            said = {"rows": window.rows.num_rows, "next": list(window.next_start), "rest": rest}
            key = _key_of(self._key, window.start)
            self._access.published.add(key)
            group.publish(key, json.dumps(said))
            self._published.append(key)
            if len(self._published) > _PUBLISHED:
                group.forget(self._published[0])
                self._access.published.discard(self._published.popleft())
        return window


def _key_of(lane: str, start: LanePosition) -> str:
    return f"lane {lane} {start.epoch} {start.unit} {start.position} {start.skipped}"
