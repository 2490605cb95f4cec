"""The search for duplicate documents, before the texts are tokenized."""

from __future__ import annotations

import json
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from threading import Event, Lock
from typing import TYPE_CHECKING, Any, final

import numpy as np

from holdfast.application.data.document_keys import KeysInParts, KeysRemovedError
from holdfast.application.thread_pool import ThreadPool
from holdfast.domain.data.work_part import WHOLE
from holdfast.domain.errors import RestartNeeded, StateError
from holdfast.ports.transform import Dropped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.application.data.document_keys import DocumentKeys, KeyStore
    from holdfast.application.data.text_reader import TextReader
    from holdfast.domain.data.work_part import WorkPart
    from holdfast.ports.data_source import Document, Unit

    Arrays = Mapping[str, NDArray[Any]]

_GROUP_CHARACTERS = 1 << 16  # whose keys are computed at a time; more would not fit into a processor cache
_PART_BYTES = 8 << 20  # of keys in a file, so that little memory holds those of a large unit
_PATIENCE_SECONDS = 5.0
_TRIES = 3
_DECISION = "decision"


@dataclass(frozen=True, slots=True)
class _PlacedUnit:
    """A unit of the source number ``source``, with the ``number`` that it has there; its keys are in ``group``."""

    source: int
    number: int
    unit: Unit
    group: str

    def part(self, number: int) -> str:
        return f"{self.number:06d}-{number:06d}"

    @property
    def index(self) -> str:
        return f"{self.number:06d}"


class _SearchCancelledError(Exception):
    """Another unit failed."""


@final
class Duplicates:
    """Finds the documents of all ``readers`` that repeat an earlier one, by the rule ``keys``.

    Earlier is by the order of the readers, the units and the positions in a unit, so the result depends on the data and
    the rule alone. The keys of the documents are computed by ``workers`` threads and stored in ``store`` unit by unit:
    an interrupted search continues with the units that are missing. Once the result is stored, the keys are removed.
    ``progress`` gets the bytes read and the total, from any thread, and ten times a second from the one that waits: an
    error that it raises ends the search. Several processes may each compute the keys of one
    ``part`` of the units; the result is found once those of all units are there.
    """

    def __init__(
        self,
        readers: Sequence[TextReader],
        keys: DocumentKeys,
        store: KeyStore,
        *,
        progress: Callable[[int, int], object] = lambda _done, _total: None,
        workers: int = 1,
        part_bytes: int = _PART_BYTES,
        part: WorkPart = WHOLE,
    ) -> None:
        self._part = part
        self.keys = keys
        self._readers = [copy(reader) for reader in readers]  # which never leave out the result of this search
        self._store = store
        self._progress = progress
        self._workers = workers
        self._part_bytes = part_bytes
        self._finding = Lock()
        self._counting = Lock()
        self._cancelled = Event()
        self._done = 0
        self._result: Arrays | None = None

    def left_out(self) -> list[SourceDuplicates]:
        """Return the documents to leave out of each reader, in the order of the readers; nothing is read yet.

        Call this before a reader gets its result, as the result depends on the other fingerprints of the reader.
        """
        return [SourceDuplicates(self, number, self._fingerprint(number)) for number in range(len(self._readers))]

    def find(self) -> Arrays:
        """Return the result, which is computed and stored unless it was before.

        The documents that are left out are in the order of source, unit and position. Those of the unit ``n`` of
        ``places`` are ``starts[n] : starts[n + 1]`` of the other arrays, which are all int64: ``positions`` in the
        unit, and ``survivor_units`` and ``survivor_positions`` of the document that stays. Raises the errors of reading
        and of the store.
        """
        with self._finding:
            if self._result is None:
                self._result = self._found()
            return self._result

    @cached_property
    def places(self) -> Sequence[_PlacedUnit]:
        """Return all units of all readers, in order."""
        return [
            _PlacedUnit(source, number, unit, group)
            for source, (reader, group) in enumerate(zip(self._readers, self._groups, strict=True))
            for number, unit in enumerate(reader.source.units())
        ]

    @cached_property
    def numbers(self) -> Mapping[tuple[int, str], int]:
        """Return the number of each unit in ``places``, by the number of its reader and its name."""
        return {(place.source, place.unit.name): number for number, place in enumerate(self.places)}

    @cached_property
    def _groups(self) -> Sequence[str]:
        """Return the name of each reader's group of keys, which do not depend on the tokenizer."""
        prints = [reader.fingerprints for reader in self._readers]
        return [_hash([self.keys.fingerprint(), each[0], *each[2:]]) for each in prints]

    def _fingerprint(self, number: int) -> str:
        # the reader's own documents are in the fingerprint of its source; later readers change nothing
        return _hash([self.keys.fingerprint(), *self._groups[:number]])

    def _found(self) -> Arrays:
        group = _hash([*self._groups, _DECISION])
        for _ in range(_TRIES):
            if (result := self._store.load(group, _DECISION)) is not None:
                return result
            try:
                result = self._decide(self._collect())
            except KeysRemovedError:
                continue
            except RestartNeeded:  # unless another part has found the result, and removed the keys
                if (result := self._store.load(group, _DECISION)) is None:
                    raise
                return result
            self._store.store(group, _DECISION, result)
            for keys in dict.fromkeys(self._groups):
                self._store.remove(keys)
            return result
        msg = "other processes removed the keys of duplicates again and again: run one process, then the others"
        raise StateError(msg)

    def _collect(self) -> KeysInParts:
        """Return the keys of all documents; those of units of the part that have none yet are computed.

        Raises ``RestartNeeded`` if units of other parts have none.
        """
        sizes = {number: self._sizes(place) for number, place in enumerate(self.places)}
        missing = [number for number in self._part.of(range(len(self.places))) if sizes[number] is None]
        total = sum(self.places[number].unit.size for number in missing)
        self._done = 0
        self._cancelled.clear()
        if missing:
            self._progress(0, total)
        workers = ThreadPool(self._workers, "holdfast-duplicates")
        try:
            making = [workers.submit(self._make, self.places[number], total) for number in missing]
            workers.wait(making, lambda: self._progress(self._done, total))
        finally:
            self._cancelled.set()
            workers.close(_PATIENCE_SECONDS)
        _raise_first([each.exception() for each in making if each.done() and not each.cancelled()])
        sizes |= {number: future.result() for number, future in zip(missing, making, strict=True)}
        known = self._all_known(sizes)
        parts = [
            [(place.group, place.part(number)) for number in range(len(each))]
            for place, each in zip(self.places, known, strict=True)
        ]
        return KeysInParts(self._store, parts, known)

    def _all_known(self, sizes: Mapping[int, Sequence[int] | None]) -> Sequence[Sequence[int]]:
        """Return the sizes of all units, those that other processes have made in the meantime included."""
        present = {
            number: self._sizes(self.places[number]) if found is None else found for number, found in sizes.items()
        }
        found = [each for each in present.values() if each is not None]
        if len(found) < len(present):
            msg = (
                f"{len(present) - len(found)} of {len(present)} units, of other parts, have not been searched for "
                f"duplicates yet: start part {self._part} again when the others have come this far"
            )
            raise RestartNeeded(msg)
        return found

    def _sizes(self, place: _PlacedUnit) -> Sequence[int] | None:
        """Return the number of documents of each part of a unit's keys, None if any part is missing."""
        index = self._store.load(place.group, place.index)
        if index is None:
            return None
        sizes: list[int] = index["documents"].tolist()
        parts = range(len(sizes))
        is_whole = all(self._store.load(place.group, place.part(number), ()) is not None for number in parts)
        return sizes if is_whole else None

    def _make(self, place: _PlacedUnit, total: int) -> Sequence[int]:
        try:
            sizes = []
            for number, part in enumerate(_joined(self._keys_of(place), self._part_bytes)):
                self._store.store(place.group, place.part(number), part)
                sizes.append(len(part["positions"]))
            self._store.store(place.group, place.index, {"documents": np.array(sizes, np.int64)})
        except BaseException:
            self._cancelled.set()
            raise
        with self._counting:
            self._done += place.unit.size
            self._progress(self._done, total)
        return sizes

    def _keys_of(self, place: _PlacedUnit) -> Iterator[Arrays]:
        values = (
            (document, value)
            for document, text in self._readers[place.source].confirming().texts(place.unit)
            if (value := self.keys.value_of(document, text)) is not None
        )
        for group in _groups_of(values):
            if self._cancelled.is_set():
                raise _SearchCancelledError
            positions = np.array([document.start for document, _ in group], np.int64)
            yield {"positions": positions, **self.keys.of([value for _, value in group])}

    def _decide(self, keys: KeysInParts) -> Arrays:
        repeated = self.keys.repetitions(keys)
        units = keys.units_of(repeated.repeated)
        survivors, back = np.unique(repeated.survivors, return_inverse=True)
        return {
            "starts": np.searchsorted(units, np.arange(len(self.places) + 1)).astype(np.int64),
            "positions": keys.positions(repeated.repeated),
            "survivor_units": keys.units_of(survivors)[back],
            "survivor_positions": keys.positions(survivors)[back],
        }


@final
class SourceDuplicates:
    """The documents of one reader that repeat an earlier document of any reader of ``duplicates``.

    The duplicates are searched at the first call that needs them.
    """

    def __init__(self, duplicates: Duplicates, reader: int, fingerprint: str) -> None:
        self._duplicates = duplicates
        self._reader = reader
        self._fingerprint = fingerprint

    def fingerprint(self) -> str:
        """Return a short text that identifies which documents are left out; nothing is read for it."""
        return self._fingerprint

    def mask(self, unit: Unit, positions: Sequence[int]) -> NDArray[np.bool_]:
        """Return whether the document at each of ``positions`` in ``unit`` is left out, bool (positions,)."""
        known = self._of(unit)[0]
        wanted = np.asarray(positions, np.int64)
        places = np.searchsorted(known, wanted)
        is_left_out = places < len(known)
        is_left_out[is_left_out] = known[places[is_left_out]] == wanted[is_left_out]
        return is_left_out

    def verdict(self, unit: Unit, position: int) -> Dropped:
        """Return the reason why the document at ``position`` is left out, with the place of the one that stays."""
        known, units, positions = self._of(unit)
        place = int(np.searchsorted(known, position))
        survivor = self._duplicates.places[int(units[place])].unit.name
        keys = self._duplicates.keys
        return Dropped(keys.reason, f"{keys.relation} the document at position {positions[place]} of {survivor}")

    def _of(self, unit: Unit) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        result = self._duplicates.find()
        number = self._duplicates.numbers[self._reader, unit.name]
        own = slice(*result["starts"][number : number + 2].tolist())
        return result["positions"][own], result["survivor_units"][own], result["survivor_positions"][own]


def _groups_of(texts: Iterable[tuple[Document, str]]) -> Iterator[Sequence[tuple[Document, str]]]:
    group: list[tuple[Document, str]] = []
    characters = 0
    for item in texts:
        group.append(item)
        characters += len(item[1])
        if characters >= _GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _joined(several: Iterable[Arrays], num_bytes: int) -> Iterator[Arrays]:
    """Join neighbours of ``several`` until they have ``num_bytes``."""
    waiting: list[Arrays] = []
    size = 0
    for arrays in several:
        waiting.append(arrays)
        size += sum(array.nbytes for array in arrays.values())
        if size >= num_bytes:
            yield _concatenated(waiting)
            waiting, size = [], 0
    if waiting:
        yield _concatenated(waiting)


def _concatenated(several: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([arrays[name] for arrays in several], axis=-1) for name in several[0]}


def _raise_first(errors: Sequence[BaseException | None]) -> None:
    for error in errors:
        if error is not None and not isinstance(error, _SearchCancelledError):
            raise error


def _hash(parts: Sequence[str]) -> str:
    return blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()
