"""The repetition rules of Gopher: drops documents that repeat lines, paragraphs or runs of words."""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, final
from unicodedata import unidata_version

import numpy as np
from typing_extensions import override

from holdfast.adapters.transform.english_words import words_of
from holdfast.adapters.transform.rule_options import fingerprint_of, threshold, thresholds_by_size
from holdfast.adapters.transform.text_statistics import above, dropped, repeated
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

_KIND = "gopher_repetition"
_VERSION = 1
_TOP = {2: 0.2, 3: 0.18, 4: 0.16}
_DUPLICATE = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}
_PARAGRAPH_END = re.compile(r"\n{2,}")
_LINE_END = re.compile(r"\n+")
_MOST_CHARACTERS = 1 << 20  # of the documents that are looked at together


@final
class GopherRepetitionTransform(RecordTransform):
    """Drops documents by Gopher's repetition rules (arXiv 2112.11446, table A1), as datatrove's filter does.

    ``top_n_grams`` and ``dup_n_grams`` map n, a number of words, to the share of the characters of the document that
    the most frequent run of n words, or the runs of n words that repeat an earlier run, may have at most. Each other
    option is the threshold of a rule. None switches a rule off; the rules are listed in docs/transforms.md. Raises
    ``ConfigurationError`` for another value.
    """

    def __init__(
        self,
        *,
        dup_line_frac: float | None = 0.3,
        dup_para_frac: float | None = 0.3,
        dup_line_char_frac: float | None = 0.2,
        dup_para_char_frac: float | None = 0.2,
        top_n_grams: Mapping[int, float] | None = _TOP,
        dup_n_grams: Mapping[int, float] | None = _DUPLICATE,
    ) -> None:
        self._most_lines = threshold(_KIND, "dup_line_frac", dup_line_frac)
        self._most_paragraphs = threshold(_KIND, "dup_para_frac", dup_para_frac)
        self._most_in_lines = threshold(_KIND, "dup_line_char_frac", dup_line_char_frac)
        self._most_in_paragraphs = threshold(_KIND, "dup_para_char_frac", dup_para_char_frac)
        self._most_top = thresholds_by_size(_KIND, "top_n_grams", top_n_grams)
        self._most_duplicate = thresholds_by_size(_KIND, "dup_n_grams", dup_n_grams)

    @property
    @override
    def fields(self) -> Sequence[str]:
        return ()

    @override
    def apply(self, records: Sequence[Record]) -> Sequence[Record | Dropped]:
        results: list[Record | Dropped] = [self._by_parts(record.text) or record for record in records]
        left = [place for place, result in enumerate(results) if isinstance(result, Record)]
        for places in _groups(left, records):
            documents = [words_of(records[place].text) for place in places]
            sizes = [len(records[place].text) for place in places]
            for place, verdict in zip(places, self._by_words(documents, sizes), strict=True):
                results[place] = verdict or results[place]
        return results

    def _by_parts(self, text: str) -> Dropped | None:
        if not text:
            return Dropped(f"{_KIND}.empty", "The document has no text.")
        paragraphs = _PARAGRAPH_END.split(text.strip())
        number, characters = repeated(paragraphs)
        share, most = number / len(paragraphs), self._most_paragraphs
        if above(share, most):
            measure = "The share of paragraphs that repeat an earlier one"
            return dropped(_KIND, "duplicate_paragraphs", measure, share, "dup_para_frac", most)
        share, most = characters / len(text), self._most_in_paragraphs
        if above(share, most):
            measure = "The share of characters in paragraphs that repeat an earlier one"
            return dropped(_KIND, "duplicate_paragraph_characters", measure, share, "dup_para_char_frac", most)
        lines = _LINE_END.split(text)
        number, characters = repeated(lines)
        share, most = number / len(lines), self._most_lines
        if above(share, most):
            measure = "The share of lines that repeat an earlier one"
            return dropped(_KIND, "duplicate_lines", measure, share, "dup_line_frac", most)
        share, most = characters / len(text), self._most_in_lines
        if above(share, most):
            measure = "The share of characters in lines that repeat an earlier one"
            return dropped(_KIND, "duplicate_line_characters", measure, share, "dup_line_char_frac", most)
        return None

    def _by_words(self, documents: Sequence[list[str]], sizes: Sequence[int]) -> Iterator[Dropped | None]:
        """Yield the verdict on each of ``documents``, given by its words and the characters of its text.

        Upper bounds, computed for all documents together, show for most of them that no rule applies; the other
        documents are counted exactly, so that the verdict does not depend on neighbors.
        """
        together = Words(documents)
        tops = {n: top_bounds(together, n) for n in self._most_top}
        duplicates = {n: duplicate_bounds(together, n) for n in self._most_duplicate}
        for number, (words, size) in enumerate(zip(documents, sizes, strict=True)):
            verdict = None
            for n, most in self._most_top.items():
                if verdict is None and tops[n][number] / size > most:
                    measure = f"The share of characters in the most frequent run of {n} words"
                    verdict = _judged(f"top_{n}_gram", measure, _top(words, n) / size, f"top_n_grams[{n}]", most)
            for n, most in self._most_duplicate.items():
                if verdict is None and duplicates[n][number] / size > most:
                    measure = f"The share of characters in runs of {n} words that repeat an earlier one"
                    share = _duplicate(words, n) / size
                    verdict = _judged(f"duplicate_{n}_grams", measure, share, f"dup_n_grams[{n}]", most)
            yield verdict

    @override
    def fingerprint(self) -> str:
        return fingerprint_of(
            _KIND,
            _VERSION,
            unicode=unidata_version,  # letters, marks and white space
            dup_line_frac=self._most_lines,
            dup_para_frac=self._most_paragraphs,
            dup_line_char_frac=self._most_in_lines,
            dup_para_char_frac=self._most_in_paragraphs,
            top_n_grams=list(self._most_top.items()),
            dup_n_grams=list(self._most_duplicate.items()),
        )


def _groups(places: Sequence[int], records: Sequence[Record]) -> Iterator[Sequence[int]]:
    group: list[int] = []
    characters = 0
    for place in places:
        size = len(records[place].text)
        if group and characters + size > _MOST_CHARACTERS:
            yield group
            group, characters = [], 0
        group.append(place)
        characters += size
    if group:
        yield group


def _judged(rule: str, found: str, share: float, option: str, most: float) -> Dropped | None:
    return dropped(_KIND, rule, found, share, option, most) if share > most else None


def _top(words: list[str], n: int) -> int:
    """Return the characters of all runs of ``n`` words that are equal to the most frequent one, with single spaces."""
    runs = Counter(zip(*(words[first:] for first in range(n)), strict=False))
    if not runs:
        return 0
    [(run, number)] = runs.most_common(1)
    return (sum(map(len, run)) + n - 1) * number


def _duplicate(words: list[str], n: int) -> int:
    """Return the characters of the runs of ``n`` words that repeat an earlier run; none overlaps another."""
    runs = list(map("".join, zip(*(words[first:] for first in range(n)), strict=False)))
    number = Counter(runs)
    seen = set[str]()
    characters = following = 0
    for place, run in enumerate(runs):
        if place < following or number[run] == 1:
            continue
        if run in seen:
            characters += len(run)
            following = place + n
        else:
            seen.add(run)
    return characters


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
    shares = np.zeros(len(words.hashes))
    shares[:last] = table[slots] * (words.left[:last] >= n)
    return words.spread(np.maximum, shares)


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
