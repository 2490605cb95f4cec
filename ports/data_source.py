"""The port for documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from holdfast.domain.data.data_files import DataFiles

Refusal = Literal["unusable", "not in the encoding"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A part of a data source that is read from front to back: a file, or a range of a large one.

    ``name`` is unique within the source and begins with the file's name, for messages. ``size`` is the approximate
    number of stored bytes. ``etag`` changes when the bytes change. A document belongs to the unit if it begins at or
    after ``start`` and before ``stop`` (None: the end).
    """

    name: str
    size: int
    etag: str
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """A text and its position in its unit: reading the unit from ``end`` yields exactly the documents after it.

    Positions are integers that each source defines itself; they increase along a file, from the unit's ``start``.
    ``fields`` are the other fields of its record that were requested from the source, as JSON values; a field that the
    record lacks is absent, and None means that none were requested. ``warnings`` say what of its record is not used.
    """

    text: str
    start: int
    end: int
    fields: Mapping[str, object] | None = field(default=None, compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that cannot be used; ``reason`` is one sentence with its file, its position and the remedy.

    Reading the unit from ``end`` yields the documents after it; None means that the rest of the unit cannot be read,
    and ``num_lost`` is then the number of records from ``start`` on, None if it is unknown. ``kind`` is the reason by
    which records are counted: text that does not decode, where ``data.encoding`` would help, is counted apart.
    ``is_passing`` means that the error is transient (for example a server that does not answer): data made without
    this record may not be stored for later use.
    """

    reason: str
    start: int
    end: int | None
    is_passing: bool = False
    kind: Refusal = "unusable"
    num_lost: int | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """A ``sentence`` about the data for a person; ``unused`` is how many files or fields it says are not used."""

    sentence: str
    unused: int = 0


class DataSource(ABC):
    """Documents in units; a unit can be read from the end of any of its documents.

    - ``units`` returns the same order each time and at least one unit, or raises ``DataError`` that names the place
      searched.
    - ``read(unit, start)`` yields the documents from ``start`` on (None: the unit's start), the same ones each time.
      Positions are exact: stopping after any document and reading again from its ``end`` loses and repeats nothing, and
      reading from a document's ``start`` yields it again. Reading is lazy: the memory used does not grow with
      the size of a file.
    - Units do not overlap, and together they contain every document exactly once.
    - Opening is cheap: nothing is read before the first document is requested.
    - A record that cannot be used (bad bytes, a missing field, too long) is yielded as ``Rejected``, followed by the
      next documents; the caller decides whether it ends the run. An error that ends the reading of a unit (a truncated
      file, a server that does not answer) is yielded as ``Rejected`` with ``end`` None, and is the last item.
    - ``DataError`` is raised only for errors that make the whole source unusable.
    - ``fingerprint`` changes when a unit's bytes, its name or the way of reading change, and is equal otherwise. It is
      computed without reading, so it may also change when only the place or the time of a file changes; ``files`` and
      ``identify`` then show whether the bytes are the same.
    - Several units may be read at the same time from several threads. An iterator that ``read`` returned may be
      advanced and closed by different threads, one at a time.
    - ``bytes_read`` and ``read_retries`` count the reads of this object so far, repeated reads included. They never
      decrease, stay 0 if a source does not know them, and may be read by any thread at any time, at negligible cost.
    - Not promised: an order of units that is suitable for training (the caller shuffles them).
    """

    @abstractmethod
    def units(self) -> Sequence[Unit]:
        """Return the units, sorted by name. Raises ``DataError`` if there are none."""

    @abstractmethod
    def read(self, unit: Unit, start: int | None = None) -> Iterator[Document | Rejected]:
        """Yield the documents of ``unit`` from the position ``start`` on, and the rejected records among them.

        Raises ``DataError`` only if the whole source is unusable.
        """

    @abstractmethod
    def confirming(self) -> DataSource:
        """Return a source of the same documents for a result that is stored and not made again.

        What was not read before is read twice, even if it is remote. A source that cannot do so returns itself.
        """

    @abstractmethod
    def expect(self, unit: Unit, start: int | None = None) -> None:
        """Announce that ``unit`` will soon be read from ``start`` on; a remote source may prefetch it.

        Raises nothing and has no other effect.
        """

    @property
    @abstractmethod
    def fetches_ahead(self) -> bool:
        """Return whether expected units are fetched in the background, so that ``read`` does not wait for them."""

    @abstractmethod
    def tell(self, unit: Unit, rejected: Rejected) -> str:
        """Return the reason of ``rejected``, with details that are too slow to find for every record, such as its line.

        Called only for the record that ends a run; raises nothing.
        """

    @abstractmethod
    def release(self) -> None:
        """Cancel all ``expect`` calls; fetched data that were not read are dropped."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short text that identifies the documents and how they are read."""

    @abstractmethod
    def files(self) -> DataFiles | None:
        """Return the identity of the data, independent of their place, with the content hashes that are known so far.

        None means that the data are identified by ``fingerprint`` only.
        """

    @abstractmethod
    def identify(self, known: DataFiles | None = None) -> DataFiles | None:
        """Return ``files`` with all content hashes; if ``known`` is given, only files with a hash in ``known`` get one.

        If a file's stamp is the same as in ``known``, its hash is copied from there and the file is not read.
        """

    @abstractmethod
    def only(self, names: Collection[str]) -> DataSource | None:
        """Return a source with only the files of these ``names``; None if the source has no named files."""

    @abstractmethod
    def remarks(self) -> Sequence[Remark]:
        """Return what a person should know of the files, first of all which are not read; no document is read."""

    @property
    @abstractmethod
    def bytes_read(self) -> int:
        """Return the number of stored bytes read so far."""

    @property
    @abstractmethod
    def read_retries(self) -> int:
        """Return the number of repeated reads so far."""
