"""One of the readers that stream a source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, final

import numpy as np

from domain.cursor import Lane
from domain.errors import DataError
from domain.order import unit_order
from domain.permutation import permute

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from numpy.typing import NDArray

    from application.tokenize import TextReader, TokenizedGroup
    from domain.packing import Packing
    from domain.row_index import RowIndex
    from ports.data_source import Unit

    Wanted = Callable[[NDArray[np.uint64]], NDArray[np.bool_]]

_EMPTY_EPOCHS = 3  # each epoch deals other units to a lane; this often nothing means that there is nothing


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

    ids: NDArray[np.unsignedinteger]
    index: RowIndex
    order: NDArray[np.int64]
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
        """Yield the windows from ``start`` on; the first one whole, whatever ``start.taken`` says."""
        begin = replace(start, taken=0)
        held: list[_Documents] = []
        room = self._plan.window_tokens
        for epoch, place, group, wanted in self._groups(begin):
            documents = _Documents(group.ids, group.offsets, wanted)
            while (cut := documents.first_reaching(room)) is not None:
                within, documents = documents.cut(cut + 1)
                behind = Lane(epoch, place, group.places[-1 - len(documents)])
                yield self._window([*held, within], begin, behind)
                begin, held, room = behind, [], self._plan.window_tokens
            held.append(documents)
            room -= documents.num_tokens
        if any(documents.num_tokens for documents in held):
            yield self._window(held, begin, Lane(epoch=epoch + 1))

    def _groups(self, start: Lane) -> Iterator[tuple[int, int, TokenizedGroup, NDArray[np.bool_]]]:
        position, first, num_empty = start.position, start.unit, 0
        for epoch in count(start.epoch):
            if self._plan.epochs is not None and epoch >= self._plan.epochs:
                return
            order = unit_order(len(self._units), self._plan.seed, epoch)[self._lane :: self._plan.lanes]
            num_empty += 1
            for place, unit in enumerate([self._units[number] for number in order[first:]], first):
                for group in self._reader.tokens(unit, max(position, unit.start)):
                    wanted = self._wanted(group.tokens.hashes) if self._wanted else _all(group)
                    num_empty = 0 if wanted.any() else num_empty
                    yield epoch, place, group, wanted
                position = 0
            first = 0
            if num_empty == _EMPTY_EPOCHS and self._plan.epochs is None:
                raise DataError(no_text(self._units))

    def _window(self, held: Sequence[_Documents], begin: Lane, behind: Lane) -> Window:
        ids = np.concatenate([documents.ids for documents in held])
        lengths = np.concatenate([documents.lengths for documents in held])
        wanted = np.concatenate([documents.wanted for documents in held])
        starts = np.cumsum(lengths) - lengths
        index = self._plan.packing(starts[wanted], lengths[wanted]).index
        place = (self._plan.seed, self._lane, begin.epoch, begin.unit, begin.position)
        return Window(ids, index, permute(np.arange(index.num_rows), index.num_rows, *place), begin, behind)


@final
class _Documents:
    """Some documents as tokens, which of them are wanted, and their number of wanted tokens."""

    def __init__(self, ids: NDArray[np.unsignedinteger], offsets: NDArray[np.int64], wanted: NDArray[np.bool_]) -> None:
        self.ids = ids[offsets[0] : offsets[-1]]
        self.lengths = np.diff(offsets)
        self.wanted = wanted
        self._offsets = offsets - offsets[0]
        self._ends = np.cumsum(np.where(self.wanted, self.lengths, 0))

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def first_reaching(self, num_tokens: int) -> int | None:
        """Return the first document with which the wanted tokens are at least so many, None if they are fewer."""
        found = int(np.searchsorted(self._ends, num_tokens))
        return found if found < len(self) else None

    def cut(self, documents: int) -> tuple[_Documents, _Documents]:
        return (
            _Documents(self.ids, self._offsets[: documents + 1], self.wanted[:documents]),
            _Documents(self.ids, self._offsets[documents:], self.wanted[documents:]),
        )


def _all(group: TokenizedGroup) -> NDArray[np.bool_]:
    return np.ones(len(group.documents), np.bool_)
