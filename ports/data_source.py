"""Where documents come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from holdfast.domain.data.data_files import DataFiles


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a data source that is read from front to back: a file, or a share of a large one.

    ``name`` is unique within the source and starts with what a person calls the file, ``size`` is about how many bytes
    the part takes as stored, ``etag`` changes when the bytes change. Documents that begin at a position from
    ``start`` on and before ``stop`` (None: the end) are the unit's.
    """

    name: str
    size: int
    etag: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A text and where it lies in its unit: reading the unit from ``end`` yields exactly what follows it.

    Positions are the source's own integers, growing along a file; a unit begins at its ``start``.
    """

    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is no document: ``reason`` is one sentence that names file and position and says what to do.

    Reading the unit from ``end`` yields what follows it; None means that the rest of the unit cannot be read.
    ``is_passing`` says that it may be readable another time (a place that does not answer): nothing that is kept may
    be made without it.
    """

    reason: str
    start: int
    end: int | None
    is_passing: bool = False


class DataSource(ABC):
    """Documents in units, each readable from any position that a document ended at.

    - ``units`` has the same order each time, and at least one unit, or raises ``DataError`` saying what was looked for.
    - ``read(unit, start)`` yields the documents from ``start`` on (None: the unit's start), the same ones each time;
      positions are exact, so a cut at any document and a new read lose and repeat nothing, and reading from a
      document's ``start`` yields it again. Only what is yielded is read: memory stays bounded, whatever the file.
    - Units do not overlap, and together they hold every document once.
    - Opening is cheap: nothing is read before the first document is asked for.
    - A record that cannot be used (bad bytes, no such field, longer than the limit) is yielded as ``Rejected``, with
      what follows it behind; whether that ends the run is for the caller to decide. What ends the reading of a unit
      (a truncated file, a place that does not answer) is ``Rejected`` with ``end`` None, and the last thing yielded.
    - ``DataError`` is raised only for what makes the whole source unusable.
    - ``fingerprint`` changes when a unit's bytes, name or the way of reading change, and stays equal otherwise. It is
      found without reading, so it may change when nothing but the place or the time of a file does; ``files`` and
      ``identify`` tell then whether the bytes are the same.
    - Several units may be read at the same time from several threads. What ``read`` returned may be advanced, and
      closed, from another thread than the one that began it, by one thread at a time.
    - ``bytes_read`` and ``read_retries`` tell what this object has read so far, what was read again included.
      They never fall, stay 0 where a source cannot tell, and any thread may ask at any time, at next to no cost.
    - Not promised: an order of units that is fit for training (whoever trains shuffles them).
    """

    @abstractmethod
    def units(self) -> Sequence[Unit]:
        """Return the units, sorted by name."""

    @abstractmethod
    def read(self, unit: Unit, start: int | None = None) -> Iterator[Document | Rejected]:
        """Yield the documents of ``unit`` from the position ``start`` on, and what was rejected among them."""

    @abstractmethod
    def expect(self, unit: Unit, start: int | None = None) -> None:
        """Hear that ``unit`` is read from ``start`` on soon; a source that is far away may begin to fetch it.

        Nothing is raised, and nothing else changes.
        """

    @property
    @abstractmethod
    def fetches_ahead(self) -> bool:
        """Return whether units that are expected are fetched meanwhile, so that nobody waits for a place far away."""

    @abstractmethod
    def tell(self, unit: Unit, rejected: Rejected) -> str:
        """Return the reason of ``rejected``, with what takes too long to be found for every record, such as its line.

        It is asked only for the record that ends a run, and raises nothing.
        """

    @abstractmethod
    def release(self) -> None:
        """Hear that nothing is expected any more: what was fetched and not read is let go."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that identifies the documents and how they are read."""

    @abstractmethod
    def files(self) -> DataFiles | None:
        """Return what the data are wherever they lie, with the contents that are known so far.

        None says that only ``fingerprint`` tells it.
        """

    @abstractmethod
    def identify(self, known: DataFiles | None = None) -> DataFiles | None:
        """Return ``files`` with all contents, or those of the files of which ``known`` tells a content.

        What it tells of a file with the same stamp is not read again.
        """

    @abstractmethod
    def only(self, names: Collection[str]) -> DataSource | None:
        """Return the documents of those of ``files`` that have these ``names``; None where files have none."""

    @property
    @abstractmethod
    def bytes_read(self) -> int:
        """Return how many bytes have arrived so far, as stored."""

    @property
    @abstractmethod
    def read_retries(self) -> int:
        """Return how many reads had to be repeated so far."""
