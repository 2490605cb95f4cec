"""Upper bounds of the repetition in documents, for many documents at once."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_WORD = np.uint64(0x9E3779B97F4A7C15)  # odd multipliers that spread the bits, as in SplitMix64
_DOCUMENT = np.uint64(0xBF58476D1CE4E5B9)
_CHARACTER = np.uint64(0x94D049BB133111EB)


@final
class Words:
    """The words of ``documents`` in flat arrays, one element a word.

    ``hashes`` (uint64) differ from process to process, so that only bounds may depend on them. ``starts`` (int64) has
    the first character of each word in the words written one after the other, and their number of characters at the
    end. ``document`` (int64) is the number of the document of a word, ``left`` (int64) the number of words from a word
    to the end of its document. Documents without words have no element.
    """

    def __init__(self, documents: Sequence[list[str]]) -> None:
        words = list(chain.from_iterable(documents))
        self.hashes = np.fromiter(map(hash, words), np.int64, len(words)).view(np.uint64)
        self.starts = np.zeros(len(words) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, words), np.int64, len(words)), out=self.starts[1:])
        numbers = np.fromiter(map(len, documents), np.int64, len(documents))
        self.number = len(documents)
        self.document = np.repeat(np.arange(len(documents)), numbers)
        self.left = np.repeat(np.cumsum(numbers), numbers) - np.arange(len(words))
        self._filled = np.flatnonzero(numbers)
        self._first = (np.cumsum(numbers) - numbers)[self._filled]
        # polynomial hashes modulo 2**64 of the beginnings of the text
        characters = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32).astype(np.uint64)
        self._powers = np.full(len(characters) + 1, _CHARACTER)
        self._powers[0] = 1
        np.cumprod(self._powers, out=self._powers)
        self._sums = np.zeros(len(characters) + 1, np.uint64)
        np.cumsum(characters * self._powers[:-1], out=self._sums[1:])

    def hashes_of_characters(self, places: NDArray[np.int64], n: int) -> NDArray[np.uint64]:
        """Return hashes of the characters of the ``n`` words from each of ``places``, which differ by document."""
        first, last = self.starts[places], self.starts[places + n]
        hashes: NDArray[np.uint64] = (self._sums[last] - self._sums[first]) * self._powers[self.starts[-1] - first]
        hashes += self.document[places].astype(np.uint64) * _DOCUMENT
        return hashes

    def spread(self, by_document: np.ufunc, values: NDArray[np.float64]) -> list[float]:
        """Return ``values`` of the words reduced to one value a document, 0 without words."""
        found = np.zeros(self.number)
        if len(values):
            found[self._filled] = by_document.reduceat(values, self._first)
        return found.tolist()


def top_bounds(words: Words, n: int) -> list[float]:
    """Return for each document a number of at least the characters in all equal runs of ``n`` words, whichever run.

    Runs count with single spaces between their words. The characters of runs are added up in a table by their hash;
    collisions only make the bound larger.
    """
    last = max(len(words.hashes) - n + 1, 0)
    hashes = words.document[:last].astype(np.uint64) * _DOCUMENT
    for place in range(n):
        hashes = hashes * _WORD + words.hashes[place : place + last]
    bits = max(last, 1).bit_length() + 1
    slots = ((hashes * _DOCUMENT) >> np.uint64(64 - bits)).view(np.int64)
    characters = words.starts[n : n + last] - words.starts[:last] + (n - 1)
    table = np.bincount(slots, characters * (words.left[:last] >= n), 1 << bits)
    found = np.zeros(len(words.hashes))
    found[:last] = table[slots] * (words.left[:last] >= n)
    return words.spread(np.maximum, found)


def duplicate_bounds(words: Words, n: int) -> list[float]:
    """Return for each document the characters of all words in runs of ``n`` words that repeat an earlier run.

    Runs are equal if their words, written without spaces, are. The number is at least that of runs which do not
    overlap.
    """
    places = np.flatnonzero(words.left >= n)
    hashes = words.hashes_of_characters(places, n)
    bits = max(len(places), 1).bit_length() + 2
    slots = ((hashes * _WORD) >> np.uint64(64 - bits)).view(np.int64)
    may_repeat = np.bincount(slots, minlength=1 << bits)[slots] > 1  # most runs are alone in their slot
    places, hashes = places[may_repeat], hashes[may_repeat]
    order = np.argsort(hashes)
    ordered = hashes[order]
    is_new = np.ones(len(order), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    covered = np.zeros(len(words.hashes), np.bool_)
    if not is_new.all():
        groups = np.flatnonzero(is_new)
        covered[places[order]] = True
        covered[places[np.minimum.reduceat(order, groups)]] = False
        begins = covered.copy()
        for distance in range(1, n):
            covered[distance:] |= begins[:-distance]
    return words.spread(np.add, np.where(covered, np.diff(words.starts), 0.0))
