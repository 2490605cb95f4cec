"""Where documents come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a data source that is read from front to back, such as a file.

    ``name`` is unique within the source, ``size`` in bytes as stored, ``etag`` changes when the bytes change.
    """

    name: str
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it lies in its unit: reading the unit from ``end`` yields exactly what follows it.

    Positions are the source's own integers, growing along a unit; 0 is its start.
    """

    text: str
    start: int
    end: int


class DataSource(ABC):
    """Documents in units, each readable from any position that a document ended at.

    - ``units`` has the same order each time, and at least one unit, or raises ``DataError`` saying what was looked for.
    - ``read(unit, start)`` yields the documents from ``start`` on, the same ones each time; positions are exact, so a
      cut at any document and a new read lose and repeat nothing, and reading from a document's ``start`` yields it
      again. Only what is yielded is read: memory stays bounded.
    - Opening is cheap: nothing is read before the first document is asked for.
    - A record that cannot be read raises ``DataError`` naming the unit and the position.
    - ``fingerprint`` changes when a unit's bytes, name or the way of reading change, and stays equal otherwise.
    - Several units may be read at the same time from several threads.
    - Not promised: an order of units that is fit for training (the feed shuffles them).
    """

    @abstractmethod
    def units(self) -> Sequence[Unit]:
        """Return the units, sorted by name."""

    @abstractmethod
    def read(self, unit: Unit, start: int = 0) -> Iterator[Document]:
        """Yield the documents of ``unit`` from the position ``start`` on."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that identifies the documents and how they are read."""
