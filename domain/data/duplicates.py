"""Documents that repeat earlier documents, by arithmetic on flat arrays."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from holdfast.domain.data.shingles import folded, jaccard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Shingles = Callable[[int], NDArray[np.uint32]]

_MOST_COMPARED = 64
_PART_BITS = 4
_PARTS = 1 << _PART_BITS


@dataclass(frozen=True, eq=False)
class Repetitions:
    """Documents that are left out, and for each the earlier document that stays in its place.

    Documents are numbered from 0 in the order of source, unit and position. ``repeated`` is int64 (left out,),
    ascending; ``survivors`` is int64 of the same length, and no survivor is left out.
    """

    repeated: NDArray[np.int64]
    survivors: NDArray[np.int64]


def normalized(text: str) -> str:
    """Return ``text`` in lower case, in Unicode's form NFC, with each run of white space as one space.

    White space is what ``str.split`` splits at; there is none at the start or the end of the result.
    """
    return " ".join(folded(text).split())


def text_digests(texts: Sequence[str]) -> NDArray[np.uint64]:
    """Return 128 bits of the SHA-256 of each text, uint64 (2, texts).

    With 128 bits, 10**12 different documents have two equal digests with a probability of 1.5e-15.
    """
    digests = b"".join(sha256(text.encode("utf-8", "surrogatepass")).digest()[:16] for text in texts)
    return np.frombuffer(digests, "<u8").reshape(-1, 2).T.astype(np.uint64)


def equal_documents(
    first_words: NDArray[np.uint64], second_words: Callable[[NDArray[np.int64]], NDArray[np.uint64]]
) -> Repetitions:
    """Return the documents whose digest an earlier document has; the first of them stays.

    ``first_words`` is uint64 (documents,), the first half of the digests; ``second_words`` returns the second half of
    the documents of the given ascending numbers.
    """
    repeated, survivors = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for members, first in _not_unique(first_words):
        ascending = np.sort(members)
        second = second_words(ascending)[np.searchsorted(ascending, members)]
        order = np.lexsort((second, first))  # stable, so that numbers ascend among equal digests
        numbers, words = members[order], np.stack([first[order], second[order]])
        is_new = np.ones(len(numbers), np.bool_)
        is_new[1:] = (words[:, 1:] != words[:, :-1]).any(0)
        survivors.append(numbers[is_new][np.cumsum(is_new) - 1][~is_new])
        repeated.append(numbers[~is_new])
    del first_words
    return _ordered(repeated, survivors)


def _ordered(repeated: list[NDArray[np.int64]], survivors: list[NDArray[np.int64]]) -> Repetitions:
    """Join both in ascending order; the lists are emptied, so that at most 32 bytes a number are in use."""
    joined, staying = np.concatenate(repeated), np.concatenate(survivors)
    repeated.clear()
    survivors.clear()
    order = np.argsort(joined)
    joined = joined[order]
    staying = staying[order]
    return Repetitions(joined, staying)


def similar_documents(bands: Iterable[NDArray[np.uint64]], shingles: Shingles, threshold: float) -> Repetitions:
    """Return the documents with an earlier document of at least this Jaccard similarity.

    ``bands`` yields the keys of one band of all documents, uint64 (documents,), at least once. Documents with the same
    key in a band are compared by their ``shingles``, uint32 without repetitions; a document is compared with the first
    64 of those at most. Whether a document is left out depends on it and on earlier documents only, so that documents
    that are added at the end change nothing before them.
    """
    originals: NDArray[np.int64] | None = None
    for keys in bands:
        if originals is None:
            originals = np.full(len(keys), -1, np.int64)
        for members, own in _not_unique(keys):
            for bucket in np.split(members, np.flatnonzero(own[1:] != own[:-1]) + 1) if len(members) else ():
                _compare(bucket, originals, shingles, threshold)
        del keys  # before the next band is loaded
    assert originals is not None, "there are no bands"
    repeated = np.flatnonzero(originals >= 0)
    survivors = originals[repeated]
    while len(later := np.flatnonzero(originals[survivors] >= 0)):
        survivors[later] = originals[survivors[later]]
    return Repetitions(repeated, survivors)


def _compare(bucket: NDArray[np.int64], originals: NDArray[np.int64], shingles: Shingles, threshold: float) -> None:
    numbers = bucket.tolist()
    for place, number in enumerate(numbers):
        if originals[number] >= 0:
            continue
        own = shingles(number)
        for earlier in numbers[: min(place, _MOST_COMPARED)]:
            other = shingles(earlier)
            # the similarity is at most the quotient of the sizes
            if min(len(own), len(other)) >= threshold * max(len(own), len(other)) and jaccard(own, other) >= threshold:
                originals[number] = earlier
                break


def _not_unique(keys: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
    """Yield the numbers of the documents whose key another document has too, ordered by key and number, and their keys.

    A sixteenth of the keys is taken at a time, by their first bits, so that the memory is a few bytes a document.
    """
    for part in range(_PARTS):
        least = part << 64 - _PART_BITS
        most = least | (1 << 64 - _PART_BITS) - 1
        numbers = np.flatnonzero((keys >= np.uint64(least)) & (keys <= np.uint64(most)))
        order = np.argsort(keys[numbers], kind="stable")
        numbers = numbers[order]
        own = keys[numbers]
        is_next_equal = own[1:] == own[:-1]
        is_member = np.zeros(len(own), np.bool_)
        is_member[1:] |= is_next_equal
        is_member[:-1] |= is_next_equal
        yield numbers[is_member], own[is_member]
