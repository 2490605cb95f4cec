"""Keys of documents by which duplicates are found: exact ones and MinHash."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol, final

from holdfast.domain.data.duplicates import equal_documents, normalized, similar_documents, text_digests
from holdfast.domain.data.shingles import band_keys, distinct, folded, shingles_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.domain.data.duplicates import Repetitions
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
