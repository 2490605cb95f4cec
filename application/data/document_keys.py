"""Keys of documents by which duplicates are found: exact ones and MinHash."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, final

import numpy as np

from holdfast.domain.data.near_duplicates import (
    band_keys,
    distinct,
    equal_documents,
    folded,
    normalized,
    shingles_of,
    similar_documents,
    text_digests,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from holdfast.domain.data.near_duplicates import Repetitions
    from holdfast.ports.data_source import Document

    Arrays = Mapping[str, NDArray[Any]]

TEXT_FIELD = "text"
"""The name under which rules of validation know the text of a document."""

_VERSION = 1  # raise it when the same documents get other keys, or the same keys other results


class Signatures(Protocol):
    """Computes MinHash signatures of sets of hashes; usable from several threads at once."""

    def __call__(self, hashes: NDArray[np.uint64], offsets: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the signature of each set ``hashes[offsets[i] : offsets[i + 1]]``, uint32 (sets, permutations)."""

    def fingerprint(self) -> str:
        """Return a short text that identifies the signatures."""


class StoredKeys(Protocol):
    """The keys of all documents, which are numbered from 0 in the order of source, unit and position."""

    @property
    def num_documents(self) -> int:
        """Return the number of documents."""

    def column(self, name: str, row: int) -> NDArray[np.uint64]:
        """Return one row of the keys ``name`` of all documents, uint64 (documents,)."""

    def some(self, name: str, row: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return one row of the keys ``name`` of the documents of these ascending numbers, uint64 (numbers,)."""

    def pieces(self, name: str, number: int) -> NDArray[np.uint32]:
        """Return the values ``name`` of one document, of which each document has as many as ``name``_sizes says."""


class DocumentKeys(Protocol):
    """A rule that says which documents are duplicates.

    ``reason`` is the short reason that drops are counted by, and ``relation`` the words before the surviving document
    in a message.
    """

    @property
    def reason(self) -> str:
        """Return the reason, such as ``dedup.exact``."""

    @property
    def relation(self) -> str:
        """Return the words, such as ``the same text as``."""

    def value_of(self, document: Document, text: str) -> str | None:
        """Return what is compared of a document whose text after transforms is ``text``; None if nothing is."""

    def of(self, texts: Sequence[str]) -> Arrays:
        """Return the keys of ``texts``, in arrays whose last axis is the documents or the pieces of all documents."""

    def repetitions(self, keys: StoredKeys) -> Repetitions:
        """Return the documents that repeat an earlier one."""

    def fingerprint(self) -> str:
        """Return a short text that identifies the keys and the rule, the same in every process."""


@final
class ExactKeys:
    """Documents with the same text, or with the same normalized text, are duplicates."""

    reason = "dedup.exact"
    relation = "the same text as"

    def __init__(self, *, normalize: bool) -> None:
        self._normalize = normalize

    def value_of(self, document: Document, text: str) -> str | None:
        """Return ``text``."""
        del document
        return text

    def of(self, texts: Sequence[str]) -> Arrays:
        """Return ``digests``, uint64 (2, texts)."""
        return {"digests": text_digests([normalized(text) for text in texts] if self._normalize else texts)}

    def repetitions(self, keys: StoredKeys) -> Repetitions:
        """Return the documents whose text is that of an earlier one."""
        return equal_documents(keys.column("digests", 0), lambda numbers: keys.some("digests", 1, numbers))

    def fingerprint(self) -> str:
        """Return the kind and the options."""
        return json.dumps(["exact", _VERSION, self._normalize])


@final
class FieldKeys:
    """Records with the same value of the field ``name`` are duplicates; records without a value are not compared."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._exact = ExactKeys(normalize=False)

    @property
    def reason(self) -> str:
        """Return the reason, such as ``validation.id.unique``."""
        return f"validation.{self._name}.unique"

    @property
    def relation(self) -> str:
        """Return the words before the record that stays."""
        return f"the field {self._name!r} has the same value as in"

    def value_of(self, document: Document, text: str) -> str | None:
        """Return the value of the field as JSON, with its keys sorted; the stored text for the field ``text``."""
        del text
        if self._name == TEXT_FIELD:
            return document.text
        value = (document.fields or {}).get(self._name)
        return None if value is None else json.dumps(value, sort_keys=True, default=str)

    def of(self, texts: Sequence[str]) -> Arrays:
        """Return ``digests``, uint64 (2, texts)."""
        return self._exact.of(texts)

    def repetitions(self, keys: StoredKeys) -> Repetitions:
        """Return the documents whose value is that of an earlier one."""
        return self._exact.repetitions(keys)

    def fingerprint(self) -> str:
        """Return the kind and the name of the field."""
        return json.dumps(["field", _VERSION, self._name])


@final
class MinHashKeys:
    """Documents are duplicates if they share at least the ``threshold`` of the sequences of ``ngram`` words of both.

    Pairs that agree in one of ``bands`` bands of their signatures are compared exactly.
    """

    reason = "dedup.minhash"
    relation = "nearly the same text as"

    def __init__(self, signatures: Signatures, *, ngram: int, bands: int, threshold: float, normalize: bool) -> None:
        self._signatures = signatures
        self._ngram = ngram
        self._bands = bands
        self._threshold = threshold
        self._options = [ngram, bands, threshold, normalize]
        self._normalize = normalize

    def value_of(self, document: Document, text: str) -> str | None:
        """Return ``text``."""
        del document
        return text

    def of(self, texts: Sequence[str]) -> Arrays:
        """Return the arrays of ``texts``.

        ``bands`` is uint64 (bands, texts), ``shingles`` uint32 (distinct sequences of all texts,), ``shingles_sizes``
        int64 (texts,).
        """
        folded_texts = [folded(text) for text in texts] if self._normalize else texts
        hashes, offsets = shingles_of(folded_texts, self._ngram)
        shingles, sizes = distinct(hashes, offsets)
        bands = band_keys(self._signatures(hashes, offsets), self._bands)
        return {"bands": bands, "shingles": shingles, "shingles_sizes": sizes}

    def repetitions(self, keys: StoredKeys) -> Repetitions:
        """Return the documents that are nearly the same as an earlier one."""
        columns = (keys.column("bands", band) for band in range(self._bands))
        return similar_documents(columns, lambda number: keys.pieces("shingles", number), self._threshold)

    def fingerprint(self) -> str:
        """Return the kind, the options and those of the signatures."""
        return json.dumps(["minhash", _VERSION, *self._options, self._signatures.fingerprint()])


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
