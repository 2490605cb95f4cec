"""Reads one lane of a streamed source, a window of packed rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import numpy as np

from holdfast.application.data.read_statistics import ReadStatistics
from holdfast.domain.data.cursor import LanePosition
from holdfast.domain.data.exclusion import NO_EXCLUSION, document_of
from holdfast.domain.data.loss_mask import join_masks
from holdfast.domain.data.no_text import all_dropped, no_text
from holdfast.domain.data.packed_rows import LaidOutRows, PieceOrigins, lay_out, pieces_in
from holdfast.domain.data.permutation import permute
from holdfast.domain.data.sample_order import unit_order
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.text_reader import TextReader, TokenizedGroup
    from holdfast.domain.data.exclusion import Exclusion
    from holdfast.domain.data.packing import Packing
    from holdfast.domain.data.row_index import RowIndex
    from holdfast.ports.data_source import Unit

    Wanted = Callable[[NDArray[np.uint64]], NDArray[np.bool_]]

MOST_EXPECTING = 24  # lanes, as each holds its prefetched data in memory; with more lanes waits are rare
_BARREN_EPOCHS = 3  # after this many epochs without a row all units are checked for one


@dataclass(frozen=True, slots=True)
class LanePlan:
    """The plan that all lanes share: their number, the packing of rows, and the tokens shuffled together.

    The pieces of ``excluded`` documents are removed from the rows, whose order stays the same.
    """

    lanes: int
    packing: Packing
    window_tokens: int
    seed: int
    epochs: int | None
    excluded: Exclusion = NO_EXCLUSION


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Rows in the order of their use, the position where the window began, and that of the next one."""

    rows: LaidOutRows
    start: LanePosition
    next_start: LanePosition
    _firsts: Sequence[int]  # of the rows' pieces

    @classmethod
    def of(cls, rows: LaidOutRows, start: LanePosition, next_start: LanePosition) -> Self:
        """Return the window with these rows."""
        return cls(rows, start, next_start, np.append(0, np.cumsum(rows.counts)).tolist())

    def part(self, begin: int, end: int) -> LaidOutRows:
        """Return the rows from ``begin`` to before ``end``, without a copy."""
        ids, lengths, starts, counts, origins, supervised = self.rows
        rows, first, last = slice(begin, end), self._firsts[begin], self._firsts[end]
        return LaidOutRows(
            ids[rows],
            lengths[rows],
            starts[first:last],
            counts[rows],
            None if origins is None else origins.part(first, last),
            None if supervised is None else supervised[rows],
        )


@final
class LaneReader:
    """Streams one lane: the units that each epoch's shuffled order deals to it, in windows of packed rows.

    The rows after a position are a pure function of the source, the plan and the position. ``wanted`` chooses documents
    by their hashes; None takes all documents. If ``is_traced``, the rows have the origins of their pieces, without any
    exclusion.
    """

    def __init__(
        self,
        reader: TextReader,
        plan: LanePlan,
        wanted: Wanted | None,
        lane: int,
        *,
        is_traced: bool = False,
    ) -> None:
        self._reader = reader
        self._units = reader.source.units()
        self._plan = plan
        self._wanted = wanted
        self._lane = lane
        self._is_traced = is_traced
        self._excluded = NO_EXCLUSION if is_traced else plan.excluded

    def expect(self, start: LanePosition) -> None:
        """Prefetch the data after ``start``, from which ``windows`` will soon be called."""
        for _, unit in self._units_from(start)[:1]:
            self._expect(unit, max(start.position, unit.start))

    def windows(self, start: LanePosition) -> Generator[Window]:
        """Yield the windows from ``start`` on; the first one is whole for any ``start.taken``.

        A window ends with its epoch. Raises ``DataError`` if no unit yields a row.
        """
        begin = start._replace(taken=0)
        num_barren = 0
        while self._plan.epochs is None or begin.epoch < self._plan.epochs:
            num_rows = 0
            for window in self._epoch(begin):
                num_rows += window.rows.num_rows
                yield window
            begin = LanePosition(begin.epoch + 1)
            num_barren = 0 if num_rows else num_barren + 1
            if num_barren == _BARREN_EPOCHS and self._plan.epochs is None:
                self._check_some()

    def _epoch(self, begin: LanePosition) -> Iterator[Window]:
        held: list[_Documents] = []
        room = self._plan.window_tokens
        for place, read in self._documents(begin):
            documents = read
            while (cut := documents.first_reaching(room)) is not None:
                within, documents = documents.cut(cut + 1)
                # not where a group ends, as that depends on where reading began
                next_start = LanePosition(begin.epoch, place, within.ends[-1])
                yield self._window([*held, within], begin, next_start)
                begin, held, room = next_start, [], self._plan.window_tokens
            held.append(documents)
            room -= documents.num_tokens
        if any(documents.num_tokens for documents in held):
            yield self._window(held, begin, LanePosition(begin.epoch + 1))

    def _documents(self, begin: LanePosition) -> Iterator[tuple[int, _Documents]]:
        position = begin.position
        units = self._units_from(begin)
        for place, (number, unit) in enumerate(units, begin.unit):
            for _, following in units[place - begin.unit + 1 :][:1]:
                self._expect(following, following.start)
            for group in self._read(unit, max(position, unit.start)):
                yield place, _Documents.of(group, number)
            position = 0

    def _read(self, unit: Unit, start: int, statistics: ReadStatistics | None = None) -> Iterator[TokenizedGroup]:
        is_hashed = self._is_traced or len(self._excluded) > 0
        return self._reader.tokens(unit, start, wanted=self._wanted, is_hashed=is_hashed, statistics=statistics)

    def _expect(self, unit: Unit, start: int) -> None:
        if self._plan.lanes <= MOST_EXPECTING:
            self._reader.source.expect(unit, start)

    def _units_from(self, begin: LanePosition) -> Sequence[tuple[int, Unit]]:
        """Return the lane's units from ``begin`` on, each with its number in the source."""
        order = unit_order(len(self._units), self._plan.seed, begin.epoch)[self._lane :: self._plan.lanes]
        return [(number, self._units[number]) for number in order[begin.unit :].tolist()]

    def _check_some(self) -> None:
        has_documents, statistics = False, ReadStatistics()
        for unit in self._units:  # not only this lane's: all rows may be in units of other lanes
            for group in self._read(unit, unit.start, statistics):
                if self._window([_Documents.of(group, 0)], LanePosition(), LanePosition()).rows.num_rows:
                    return
                has_documents = True
        if has_documents and getattr(self._plan.packing, "overflow", "split") == "drop":
            raise DataError(all_dropped(self._plan.packing.length))
        raise DataError(no_text([unit.name for unit in self._units], statistics.drops))

    def _window(self, held: Sequence[_Documents], begin: LanePosition, next_start: LanePosition) -> Window:
        ids = np.concatenate([documents.ids for documents in held])
        lengths = np.concatenate([documents.lengths for documents in held])
        begins = np.cumsum(lengths) - lengths
        index = self._plan.packing(begins, lengths).index
        place = (self._plan.seed, self._lane, begin.epoch, begin.unit, begin.position)
        order = permute(np.arange(index.num_rows), index.num_rows, *place)
        if len(self._excluded):
            index = self._excluded.shorten(index, begins, np.concatenate([documents.hashes for documents in held]))
        mask = join_masks([documents.loss_mask for documents in held], [len(documents.ids) for documents in held])
        rows = lay_out(ids, index, order, self._plan.packing.length, mask)
        if self._is_traced:
            rows = rows._replace(origins=_origins(held, begins, index, order, begin.epoch))
        return Window.of(rows, begin, next_start)


def _origins(
    held: Sequence[_Documents], begins: NDArray[np.int64], index: RowIndex, order: NDArray[np.int64], epoch: int
) -> PieceOrigins:
    starts, _, _ = pieces_in(index, order)
    documents = document_of(starts, begins)
    units = np.repeat([each.unit for each in held], [len(each.lengths) for each in held])
    positions = np.concatenate([np.array(each.starts, np.int64) for each in held])
    hashes = np.concatenate([each.hashes for each in held])
    return PieceOrigins(epoch, units[documents], positions[documents], hashes[documents], starts - begins[documents])


_NO_HASHES = np.zeros(0, np.uint64)


@dataclass(frozen=True, slots=True, eq=False)
class _Documents:
    """Some documents of a unit as tokens.

    ``starts`` and ``ends`` are the positions in the unit before and after each document, ``hashes`` the documents' ids,
    empty unless they were requested. ``unit`` is the number of the unit in the source. ``loss_mask`` is that of
    ``ids``, None if there is none.
    """

    ids: NDArray[np.unsignedinteger]
    lengths: NDArray[np.int64]
    ends: Sequence[int]
    starts: Sequence[int]
    hashes: NDArray[np.uint64]
    unit: int
    loss_mask: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, group: TokenizedGroup, unit: int) -> Self:
        hashes = _NO_HASHES if group.hashes is None else group.hashes
        return cls(group.ids, np.diff(group.offsets), group.ends, group.starts, hashes, unit, group.loss_mask)

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def first_reaching(self, num_tokens: int) -> int | None:
        """Return the last document of the record that completes ``num_tokens`` tokens, None if there are fewer."""
        if len(self.ids) < num_tokens or not len(self.lengths):
            return None
        found = int(np.searchsorted(np.cumsum(self.lengths), num_tokens))
        while self.ends[found + 1 : found + 2] == self.ends[found : found + 1]:
            found += 1
        return found

    def cut(self, documents: int) -> tuple[_Documents, _Documents]:
        tokens = int(self.lengths[:documents].sum())
        return self._part(slice(tokens), slice(documents)), self._part(slice(tokens, None), slice(documents, None))

    def _part(self, tokens: slice, documents: slice) -> _Documents:
        return _Documents(
            self.ids[tokens],
            self.lengths[documents],
            self.ends[documents],
            self.starts[documents],
            self.hashes[documents],
            self.unit,
            None if self.loss_mask is None else self.loss_mask[tokens],
        )
