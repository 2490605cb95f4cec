"""The keys of all documents of a search for duplicates, read from a store part by part."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

_HELD_PARTS = 64


class KeyStore(Protocol):
    """Stores named arrays in groups; each write is atomic, and methods raise ``StateError`` for a disk's error."""

    def load(self, group: str, name: str, only: Collection[str] | None = None, row: int | None = None) -> Arrays | None:
        """Return the arrays of this name, or those ``only`` names; None if there are none, or if they are damaged.

        With ``row`` only this row of each is returned.
        """

    def store(self, group: str, name: str, arrays: Arrays) -> None:
        """Store ``arrays`` under this name."""

    def remove(self, group: str) -> None:
        """Remove all arrays of the group."""


class KeysRemovedError(Exception):
    """Keys were removed by another process, which has finished the same search."""


@final
class KeysInParts:
    """The keys of all documents in ``store``, numbered in the order of the units and their positions.

    ``parts`` are, for each unit, the groups and names of the parts of its keys, and ``sizes`` their numbers of
    documents. Raises ``KeysRemovedError`` if a part is no longer there.
    """

    def __init__(
        self, store: KeyStore, parts: Sequence[Sequence[tuple[str, str]]], sizes: Sequence[Sequence[int]]
    ) -> None:
        self._store = store
        self._parts = [part for of_unit in parts for part in of_unit]
        self._starts = np.array([0, *accumulate(size for each in sizes for size in each)], np.int64)
        self._unit_starts = np.array([0, *accumulate(map(sum, sizes))], np.int64)
        self._pieces = lru_cache(_HELD_PARTS)(self._load_pieces)

    @property
    def num_documents(self) -> int:
        """Return the number of documents."""
        return int(self._starts[-1])

    def column(self, name: str, row: int) -> NDArray[np.uint64]:
        """Return one row of the keys ``name`` of all documents, uint64 (documents,)."""
        column = np.empty(self.num_documents, np.uint64)
        for number in range(len(self._parts)):
            column[self._starts[number] : self._starts[number + 1]] = self._load(number, name, row=row)[name]
        return column

    def some(self, name: str, row: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return one row of the keys ``name`` of the documents ``numbers``, int64 in increasing order, as uint64."""
        return self._gather(numbers, np.uint64, name, row)

    def positions(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions in their units of the documents ``numbers``, int64 in increasing order, as int64."""
        return self._gather(numbers, np.int64, "positions", None)

    def units_of(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the units of the documents ``numbers``, both int64."""
        return np.searchsorted(self._unit_starts, numbers, "right").astype(np.int64) - 1

    def pieces(self, name: str, number: int) -> NDArray[np.uint32]:
        """Return the pieces ``name`` of the document ``number``, uint32 (pieces,)."""
        part = int(np.searchsorted(self._starts, number, "right")) - 1
        pieces, ends = self._pieces(name, part)
        place = number - int(self._starts[part])
        found: NDArray[np.uint32] = pieces[int(ends[place]) : int(ends[place + 1])]
        return found

    def _gather(self, numbers: NDArray[np.int64], dtype: Any, name: str, row: int | None) -> NDArray[Any]:
        gathered = np.empty(len(numbers), dtype)
        cuts = np.searchsorted(numbers, self._starts)
        for part in np.flatnonzero(cuts[1:] > cuts[:-1]).tolist():
            own = slice(cuts[part], cuts[part + 1])
            gathered[own] = self._load(part, name, row=row)[name][numbers[own] - self._starts[part]]
        return gathered

    def _load_pieces(self, name: str, part: int) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        loaded = self._load(part, name, f"{name}_sizes")
        sizes = loaded[f"{name}_sizes"]
        ends = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        return loaded[name], ends

    def _load(self, number: int, *names: str, row: int | None = None) -> Arrays:
        loaded = self._store.load(*self._parts[number], names, row)
        if loaded is None:
            raise KeysRemovedError
        return loaded
