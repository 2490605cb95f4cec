"""One of the readers that stream a source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self, final

import numpy as np

from domain.cursor import Lane
from domain.errors import DataError
from domain.order import unit_order
from domain.permutation import permute
from domain.rows import lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from numpy.typing import NDArray

    from application.tokenize import TextReader, TokenizedGroup
    from domain.packing import Packing
    from domain.rows import Rows
    from ports.data_source import Unit

    Wanted = Callable[[NDArray[np.uint64]], NDArray[np.bool_]]

_BARREN_EPOCHS = 3  # after so many without a row it is worth looking whether there is any


@dataclass(frozen=True, slots=True)
class LanePlan:
    """What all lanes share: how many there are, how rows are packed, and how many tokens are shuffled together."""

    lanes: int
    packing: Packing
    window_tokens: int
    seed: int
    epochs: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Rows in the order of their use, where the window began, and where the next one does."""

    rows: Rows
    start: Lane
    next_start: Lane


def no_text(units: Sequence[Unit]) -> str:
    """Return in words that ``units`` hold nothing to train on."""
    return f"none of the {len(units)} files, the first being {units[0].name}, holds any text to use"


@final
class LaneReader:
    """Streams one lane: the units that the shuffled order of each epoch deals to it, in windows of packed rows.

    What follows a place is a pure function of the source, the plan and the place. ``wanted`` chooses documents by their
    hashes; None takes all, and hashes none.
    """

    def __init__(
        self,
        reader: TextReader,
        plan: LanePlan,
        wanted: Wanted | None,
        lane: int,
    ) -> None:
        self._reader = reader
        self._units = reader.source.units()
        self._plan = plan
        self._wanted = wanted
        self._lane = lane

    def windows(self, start: Lane) -> Generator[Window]:
        """Yield the windows from ``start`` on; the first one whole, whatever ``start.taken`` says.

        A window ends with its epoch. Raises ``DataError`` where no unit holds anything that makes a row.
        """
        begin = replace(start, taken=0)
        num_barren = 0
        while self._plan.epochs is None or begin.epoch < self._plan.epochs:
            num_rows = 0
            for window in self._epoch(begin):
                num_rows += len(window.rows)
                yield window
            begin = Lane(begin.epoch + 1)
            num_barren = 0 if num_rows else num_barren + 1
            if num_barren == _BARREN_EPOCHS and self._plan.epochs is None:
                self._check_some()

    def _epoch(self, begin: Lane) -> Iterator[Window]:
        held: list[_Documents] = []
        room = self._plan.window_tokens
        for place, group in self._groups(begin):
            documents = _Documents.of(group)
            while (cut := documents.first_reaching(room)) is not None:
                within, documents = documents.cut(cut + 1)
                behind = Lane(begin.epoch, place, documents.places[0])
                yield self._window([*held, within], begin, behind)
                begin, held, room = behind, [], self._plan.window_tokens
            held.append(documents)
            room -= documents.num_tokens
        if any(documents.num_tokens for documents in held):
            yield self._window(held, begin, Lane(begin.epoch + 1))

    def _groups(self, begin: Lane) -> Iterator[tuple[int, TokenizedGroup]]:
        order = unit_order(len(self._units), self._plan.seed, begin.epoch)[self._lane :: self._plan.lanes].tolist()
        position = begin.position
        for place, number in enumerate(order[begin.unit :], begin.unit):
            unit = self._units[number]
            for group in self._reader.tokens(unit, max(position, unit.start), wanted=self._wanted):
                yield place, group
            position = 0

    def _check_some(self) -> None:
        for unit in self._units:  # what this lane was dealt is no proof: the others may hold all there is
            for group in self._reader.tokens(unit, wanted=self._wanted):
                if len(self._window([_Documents.of(group)], Lane(), Lane()).rows):
                    return
        raise DataError(no_text(self._units))

    def _window(self, held: Sequence[_Documents], begin: Lane, behind: Lane) -> Window:
        ids = np.concatenate([documents.ids for documents in held])
        lengths = np.concatenate([documents.lengths for documents in held])
        index = self._plan.packing(np.cumsum(lengths) - lengths, lengths).index
        place = (self._plan.seed, self._lane, begin.epoch, begin.unit, begin.position)
        order = permute(np.arange(index.num_rows), index.num_rows, *place)
        return Window(lay_out(ids, index, order, self._plan.packing.length), begin, behind)


@dataclass(frozen=True, slots=True, eq=False)
class _Documents:
    """Some documents as tokens; ``places`` are their starts in the unit, then the last end."""

    ids: NDArray[np.unsignedinteger]
    lengths: NDArray[np.int64]
    places: Sequence[int]

    @classmethod
    def of(cls, group: TokenizedGroup) -> Self:
        return cls(group.ids, np.diff(group.offsets), group.places)

    @property
    def num_tokens(self) -> int:
        return len(self.ids)

    def first_reaching(self, num_tokens: int) -> int | None:
        """Return the first document with which the tokens are at least so many, None if they are fewer."""
        if len(self.ids) < num_tokens or not len(self.lengths):
            return None
        return int(np.searchsorted(np.cumsum(self.lengths), num_tokens))

    def cut(self, documents: int) -> tuple[_Documents, _Documents]:
        tokens = int(self.lengths[:documents].sum())
        return (
            _Documents(self.ids[:tokens], self.lengths[:documents], self.places[: documents + 1]),
            _Documents(self.ids[tokens:], self.lengths[documents:], self.places[documents:]),
        )
