"""Reads one lane of a streamed source, a window of packed rows at a time."""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, final

import numpy as np

from holdfast.application.data.rejected_records import ReadStatistics
from holdfast.domain.data.cursor import LanePosition
from holdfast.domain.data.exclusion import NO_EXCLUSION, document_of
from holdfast.domain.data.loss_mask import join_masks
from holdfast.domain.data.no_text import all_dropped, no_text
from holdfast.domain.data.permutation import permute
from holdfast.domain.data.row_index import LaidOutRows, PieceOrigins, lay_out, pieces_in
from holdfast.domain.data.sample_order import deal_units, unit_order
from holdfast.domain.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.text_reader import TextReader, TokenizedGroup
    from holdfast.domain.data.exclusion import Exclusion
    from holdfast.domain.data.packing import Packing
    from holdfast.domain.data.row_index import RowIndex
    from holdfast.ports.data_source import Unit

    Wanted = Callable[[NDArray[np.uint64]], NDArray[np.bool_]]

MOST_EXPECTING = 24  # lanes, as each holds its prefetched data in memory; with more lanes waits are rare
_BARREN_EPOCHS = 3  # after this many epochs without a row all units are checked for one
ROW_ORDER, STRIPED = 2, 1
"""The version of the order of streamed rows, and the former one, of ``StripedBatches``, which begun runs keep."""


@dataclass(frozen=True, slots=True)
class LanePlan:
    """The plan that all lanes share: their number, the packing of rows, and the tokens shuffled together.

    The pieces of ``excluded`` documents are removed from the rows, whose order stays the same. ``order`` is the version
    of the order of rows, ``STRIPED`` or the current one.
    """

    lanes: int
    packing: Packing
    window_tokens: int
    seed: int
    epochs: int | None
    excluded: Exclusion = NO_EXCLUSION
    order: int = ROW_ORDER


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Rows in the order of their use, the position where the window began, and that of the next one.

    The last window of a lane in an epoch has no rows, but in ``rest`` the documents, or the end of one, that fill none;
    ``next_start`` is their position then. ``rest`` is None elsewhere.
    """

    rows: LaidOutRows
    start: LanePosition
    next_start: LanePosition
    _firsts: Sequence[int]  # of the rows' pieces
    rest: LaneDocuments | None = None

    @classmethod
    def of(
        cls, rows: LaidOutRows, start: LanePosition, next_start: LanePosition, rest: LaneDocuments | None = None
    ) -> Self:
        """Return the window with these rows."""
        return cls(rows, start, next_start, np.append(0, np.cumsum(rows.counts)).tolist(), rest)

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

    The rows after a position are a pure function of the source, the plan and the position. What fills no row of a
    window begins the next one. ``wanted`` chooses documents by their hashes; None takes all documents. If
    ``is_traced``, the rows have the origins of their pieces, without any exclusion.
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
        self._sizes = tuple(unit.size for unit in self._units) if plan.order != STRIPED else ()
        self._is_traced = is_traced
        self._excluded = NO_EXCLUSION if is_traced else plan.excluded

    def unobserved(self) -> LaneReader:
        """Return a reader of the same rows that reports no rejection: another rank, which reads them too, does."""
        return LaneReader(self._reader.unobserved(), self._plan, self._wanted, self._lane, is_traced=self._is_traced)

    def expect(self, start: LanePosition) -> None:
        """Prefetch the data after ``start``, from which ``windows`` will soon be called."""
        for _, unit in self._units_from(start)[:1]:
            self._expect(unit, max(start.position, unit.start))

    def windows(self, start: LanePosition) -> Generator[Window]:
        """Yield the windows from ``start`` on; the first one is whole for any ``start.taken``.

        A window ends with its epoch. With ``STRIPED`` order raises ``DataError`` if no unit yields a row.
        """
        begin = start._replace(taken=0)
        num_barren = 0
        while self._plan.epochs is None or begin.epoch < self._plan.epochs:
            num_rows = 0
            for window in self._striped(begin) if self._plan.order == STRIPED else self._epoch(begin):
                num_rows += window.rows.num_rows
                yield window
            begin = LanePosition(begin.epoch + 1)
            num_barren = 0 if num_rows else num_barren + 1
            if num_barren == _BARREN_EPOCHS and self._plan.order == STRIPED and self._plan.epochs is None:
                self._check_some()

    def lay_out(self, documents: LaneDocuments, *key: int) -> LaidOutRows:
        """Return the rows that ``documents`` make, in the order that ``key`` chooses."""
        begins = np.cumsum(documents.lengths) - documents.lengths
        index = self._plan.packing(begins, documents.lengths).index
        order = permute(np.arange(index.num_rows), index.num_rows, self._plan.seed, *key)
        if len(self._excluded):
            index = self._excluded.shorten(index, begins, documents.hashes)
        rows = lay_out(documents.ids, index, order, self._plan.packing.length, documents.loss_mask)
        return rows._replace(origins=_origins(documents, begins, index, order, key[1])) if self._is_traced else rows

    def _epoch(self, begin: LanePosition) -> Iterator[Window]:
        held: list[LaneDocuments] = []
        room = most = max(self._plan.window_tokens, self._plan.packing.length)
        for read in self._fitting(begin):
            coming = [read]
            while coming:
                documents = coming.pop()
                if (cut := documents.first_reaching(room)) is None:
                    held.append(documents)
                    room -= documents.num_tokens
                    continue
                within, after = documents.cut(cut + 1)
                window, rest = self._closed([*held, within], begin)
                yield window
                # what is left is read as if it came next, so that a window does not depend on where reading began
                coming += [after, rest]
                begin, held, room = window.next_start, [], most
        while True:  # until what is left fills no row by itself, wherever reading began
            window, rest = self._closed(held, begin)
            if not window.rows.num_rows:
                break
            yield window
            begin, held = window.next_start, [rest]
        yield replace(window, rest=rest)

    def _closed(self, held: Sequence[LaneDocuments], begin: LanePosition) -> tuple[Window, LaneDocuments]:
        """Return the window of the rows that ``held`` fills, and the documents that are left."""
        documents = LaneDocuments.join(held)
        settled, rest = documents.cut(*self._plan.packing.num_settled(documents.lengths))
        rows = self.lay_out(settled, self._lane, begin.epoch, begin.unit, begin.position, begin.skipped)
        next_start = begin
        if len(rest.lengths):
            places = rest.places
            turn, position, skipped = (int(array[0]) for array in (places.turns, places.starts, places.offsets))
            next_start = LanePosition(begin.epoch, turn, position, skipped=skipped)
        elif len(documents.lengths):
            next_start = LanePosition(begin.epoch, int(documents.places.turns[-1]), int(documents.places.ends[-1]))
        return Window.of(rows, begin, next_start), rest

    def _fitting(self, begin: LanePosition) -> Iterator[LaneDocuments]:
        """Yield the documents from ``begin`` on, without the tokens of its record that are to be skipped."""
        packing, skipped = self._plan.packing, begin.skipped
        for read in self._documents(begin):
            documents = read.fitted(packing.length, getattr(packing, "overflow", "split"))
            if skipped and len(documents.lengths):
                documents, skipped = documents.without(skipped), 0
            yield documents

    def _striped(self, begin: LanePosition) -> Iterator[Window]:
        held: list[LaneDocuments] = []
        room = self._plan.window_tokens
        for read in self._documents(begin):
            documents = read
            while (cut := documents.first_reaching(room)) is not None:
                within, documents = documents.cut(cut + 1)
                # not where a group ends, as that depends on where reading began
                next_start = LanePosition(begin.epoch, int(within.places.turns[-1]), int(within.places.ends[-1]))
                yield self._window([*held, within], begin, next_start)
                begin, held, room = next_start, [], self._plan.window_tokens
            held.append(documents)
            room -= documents.num_tokens
        if any(documents.num_tokens for documents in held):
            yield self._window(held, begin, LanePosition(begin.epoch + 1))

    def _window(self, held: Sequence[LaneDocuments], begin: LanePosition, next_start: LanePosition) -> Window:
        place = (self._lane, begin.epoch, begin.unit, begin.position)
        return Window.of(self.lay_out(LaneDocuments.join(held), *place), begin, next_start)

    def _documents(self, begin: LanePosition) -> Iterator[LaneDocuments]:
        position = begin.position
        units = self._units_from(begin)
        for place, (number, unit) in enumerate(units, begin.unit):
            for _, following in units[place - begin.unit + 1 :][:1]:
                self._expect(following, following.start)
            for group in self._read(unit, max(position, unit.start)):
                yield LaneDocuments.of(group, number, place)
            position = 0

    def _read(self, unit: Unit, start: int, statistics: ReadStatistics | None = None) -> Iterator[TokenizedGroup]:
        is_hashed = self._is_traced or len(self._excluded) > 0
        return self._reader.tokens(unit, start, wanted=self._wanted, is_hashed=is_hashed, statistics=statistics)

    def _expect(self, unit: Unit, start: int) -> None:
        if self._plan.lanes <= MOST_EXPECTING:
            self._reader.source.expect(unit, start)

    def _units_from(self, begin: LanePosition) -> Sequence[tuple[int, Unit]]:
        """Return the lane's units from ``begin`` on, each with its number in the source."""
        lanes, seed = self._plan.lanes, self._plan.seed
        if self._plan.order == STRIPED:
            order = unit_order(len(self._units), seed, begin.epoch)[self._lane :: lanes]
        else:
            order = deal_units(self._sizes, lanes, seed, begin.epoch)[self._lane]
        return [(number, self._units[number]) for number in order[begin.unit :].tolist()]

    def _check_some(self) -> None:
        has_documents, statistics = False, ReadStatistics()
        for unit in self._units:  # not only this lane's: all rows may be in units of other lanes
            for group in self._read(unit, unit.start, statistics):
                if self.lay_out(LaneDocuments.of(group, 0, 0), self._lane, 0).num_rows:
                    return
                has_documents = True
        if has_documents and getattr(self._plan.packing, "overflow", "split") == "drop":
            raise DataError(all_dropped(self._plan.packing.length))
        raise DataError(no_text([unit.name for unit in self._units], statistics.drops))


def _origins(
    documents: LaneDocuments, begins: NDArray[np.int64], index: RowIndex, order: NDArray[np.int64], epoch: int
) -> PieceOrigins:
    starts, _, _ = pieces_in(index, order)
    owners, places = document_of(starts, begins), documents.places
    first_tokens = starts - begins[owners] + places.offsets[owners] - places.firsts[owners]
    return PieceOrigins(epoch, places.units[owners], places.starts[owners], documents.hashes[owners], first_tokens)


_NO_HASHES = np.zeros(0, np.uint64)
_NONE = np.zeros(0, np.int64)


class DocumentPlaces(NamedTuple):
    """Where some documents come from, all int64 (documents,).

    ``starts`` and ``ends`` are the positions in the unit before and after the record of a document. ``offsets`` count
    the tokens of that record before what is here of the document, ``firsts`` those before the whole document. ``units``
    are numbers of the source's units, and ``turns`` those in the order of the lane.
    """

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    offsets: NDArray[np.int64]
    firsts: NDArray[np.int64]
    units: NDArray[np.int64]
    turns: NDArray[np.int64]

    def at(self, documents: slice | NDArray[np.bool_]) -> DocumentPlaces:
        """Return the places of some of the documents."""
        return DocumentPlaces(*(array[documents] for array in self))


@dataclass(frozen=True, slots=True, eq=False)
class LaneDocuments:
    """Some documents as flat token ``ids`` (tokens,), with their ``lengths`` int64 and ``places``.

    ``hashes`` uint64 (documents,) are empty unless they were requested. ``loss_mask`` bool (tokens,) is None if all
    tokens are trained on.
    """

    ids: NDArray[np.unsignedinteger]
    lengths: NDArray[np.int64]
    places: DocumentPlaces
    hashes: NDArray[np.uint64]
    loss_mask: NDArray[np.bool_] | None = None

    @classmethod
    def of(cls, group: TokenizedGroup, unit: int, turn: int) -> Self:
        """Return the documents of ``group``, all from one unit, the lane's one of the number ``turn``."""
        lengths = np.diff(group.offsets)
        starts, ends = np.array(group.starts, np.int64), np.array(group.ends, np.int64)
        hashes = _NO_HASHES if group.hashes is None else group.hashes
        firsts, size = _firsts(starts, lengths), len(lengths)
        places = DocumentPlaces(starts, ends, firsts, firsts, np.full(size, unit), np.full(size, turn))
        return cls(group.ids, lengths, places, hashes, group.loss_mask)

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the documents of all ``parts``, in order."""
        parts = [part for part in parts if len(part.lengths)] or [cls.empty()]
        if len(parts) == 1:
            return parts[0]
        mask = join_masks([part.loss_mask for part in parts], [len(part.ids) for part in parts])
        ids, lengths, hashes = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "lengths", "hashes")
        )
        places = DocumentPlaces(*map(np.concatenate, zip(*(part.places for part in parts), strict=True)))
        return cls(ids, lengths, places, hashes, mask)

    @classmethod
    def empty(cls) -> Self:
        """Return no documents."""
        places = DocumentPlaces(_NONE, _NONE, _NONE, _NONE, _NONE, _NONE)
        return cls(np.zeros(0, np.uint16), _NONE, places, _NO_HASHES)

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens."""
        return len(self.ids)

    def first_reaching(self, num_tokens: int) -> int | None:
        """Return the last document of the record that completes ``num_tokens`` tokens, None if there are fewer."""
        if len(self.ids) < num_tokens or not len(self.lengths):
            return None
        found = int(np.searchsorted(np.cumsum(self.lengths), num_tokens))
        while found + 1 < len(self.lengths) and self._record(found + 1) == self._record(found):
            found += 1
        return found

    def cut(self, documents: int, tokens: int = 0) -> tuple[Self, Self]:
        """Return the first ``documents`` with the first ``tokens`` of the next one, and the rest."""
        before = int(self.lengths[:documents].sum()) + tokens
        first, last = slice(documents + (tokens > 0)), slice(documents, None)
        beginning, rest = self._part(slice(before), first), self._part(slice(before, None), last)
        if tokens:
            lengths, offsets = rest.lengths.copy(), rest.places.offsets.copy()
            beginning = replace(beginning, lengths=np.append(beginning.lengths[:-1], tokens))
            lengths[0] -= tokens
            offsets[0] += tokens
            rest = replace(rest, lengths=lengths, places=rest.places._replace(offsets=offsets))
        return beginning, rest

    def without(self, num_tokens: int) -> Self:
        """Return the documents without their first ``num_tokens`` tokens, at most all of them."""
        ends = np.cumsum(self.lengths)
        documents = int(np.searchsorted(ends, num_tokens, side="right"))
        return self.cut(documents, num_tokens - int(ends[documents - 1] if documents else 0))[1]

    def fitted(self, length: int, overflow: str) -> Self:
        """Return the documents as ``overflow`` leaves them: those of more than ``length`` tokens cut or dropped."""
        if overflow == "split" or not (self.lengths > length).any():
            return self
        kept = np.full(len(self.lengths), True) if overflow == "truncate" else self.lengths <= length
        lengths = np.where(kept, np.minimum(self.lengths, length), 0)
        begins = np.cumsum(self.lengths) - self.lengths
        tokens = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
        places = self.places.at(kept)
        firsts = _firsts(places.starts, lengths[kept])
        places = places._replace(offsets=firsts, firsts=firsts)
        return replace(self._part(tokens, kept), lengths=lengths[kept], places=places)

    def to_json(self) -> Mapping[str, Any]:
        """Return the tokens, the ids of documents and the loss mask as JSON, without their places in the data."""
        mask = None if self.loss_mask is None else _text(self.loss_mask.astype(np.uint8))
        ids = self.ids.astype(np.uint32)
        return {"ids": _text(ids), "lengths": self.lengths.tolist(), "hashes": self.hashes.tolist(), "mask": mask}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the documents that ``to_json`` described, at no place."""
        lengths = np.array(record["lengths"], np.int64)
        none = np.zeros_like(lengths)
        mask = None if record["mask"] is None else np.frombuffer(b64decode(record["mask"]), np.uint8).astype(np.bool_)
        ids = np.frombuffer(b64decode(record["ids"]), np.uint32)
        hashes = np.array(record["hashes"], np.uint64)
        return cls(ids, lengths, DocumentPlaces(none, none, none, none, none, none), hashes, mask)

    def _record(self, document: int) -> tuple[int, int]:
        return int(self.places.turns[document]), int(self.places.ends[document])

    def _part(self, tokens: slice | NDArray[np.int64], documents: slice | NDArray[np.bool_]) -> Self:
        return type(self)(
            self.ids[tokens],
            self.lengths[documents],
            self.places.at(documents),
            self.hashes[documents] if len(self.hashes) else self.hashes,
            None if self.loss_mask is None else self.loss_mask[tokens],
        )


def _firsts(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of tokens of the same record before each document of one unit."""
    begins = np.cumsum(lengths) - lengths
    is_first = np.append(True, starts[1:] != starts[:-1])[: len(starts)]
    firsts: NDArray[np.int64] = begins - begins[is_first][np.cumsum(is_first) - 1]
    return firsts


def _text(array: NDArray[Any]) -> str:
    return b64encode(array.tobytes()).decode()
