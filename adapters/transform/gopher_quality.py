"""The quality rules of Gopher: drops documents by their words and symbols."""

from __future__ import annotations

from typing import TYPE_CHECKING, final
from unicodedata import unidata_version

from typing_extensions import override

from holdfast.adapters.transform.english_words import PieceTable, words_of, words_of_piece
from holdfast.adapters.transform.rule_options import fingerprint_of, limits, marks, threshold
from holdfast.adapters.transform.text_statistics import PUNCTUATION, above, below, dropped
from holdfast.ports.transform import Dropped, Record, RecordTransform

if TYPE_CHECKING:
    from collections.abc import Sequence

_KIND = "gopher_quality"
_VERSION = 1
_STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
_BITS = 40  # of a count in the sum of a document
_MASK = (1 << _BITS) - 1
_FIRST_PIECES = 200


@final
class GopherQualityTransform(RecordTransform):
    """Drops documents by Gopher's quality rules (arXiv 2112.11446, table A1), as datatrove's filter does.

    Each option is the threshold of a rule, or a list of the least and the most; None switches a rule off. The rules are
    listed in docs/transforms.md. A document without words is dropped too. Raises ``ConfigurationError`` for another
    value.
    """

    def __init__(
        self,
        *,
        doc_words: Sequence[float | None] = (50, 100_000),
        avg_word_length: Sequence[float | None] = (3, 10),
        max_symbol_word_ratio: float | None = 0.1,
        max_bullet_lines_ratio: float | None = 0.9,
        max_ellipsis_lines_ratio: float | None = 0.3,
        min_alpha_words_ratio: float | None = 0.8,
        min_stop_words: int | None = 2,
        stop_words: Sequence[str] = _STOP_WORDS,
    ) -> None:
        self._least_words, self._most_words = limits(_KIND, "doc_words", doc_words)
        self._least_length, self._most_length = limits(_KIND, "avg_word_length", avg_word_length)
        self._most_symbols = threshold(_KIND, "max_symbol_word_ratio", max_symbol_word_ratio)
        self._most_bullets = threshold(_KIND, "max_bullet_lines_ratio", max_bullet_lines_ratio)
        self._most_ellipses = threshold(_KIND, "max_ellipsis_lines_ratio", max_ellipsis_lines_ratio)
        self._least_alphabetic = threshold(_KIND, "min_alpha_words_ratio", min_alpha_words_ratio)
        self._least_stops = threshold(_KIND, "min_stop_words", min_stop_words)
        self._stops = frozenset(marks(_KIND, "stop_words", stop_words))
        self._whole_stops = frozenset(word for word in self._stops if words_of(word) == [word])

    @property
    @override
    def fields(self) -> Sequence[str]:
        return ()

    @override
    def apply(self, records: Sequence[Record]) -> Sequence[Record | Dropped]:
        return [self._verdict(record.text) or record for record in records]

    def _verdict(self, text: str) -> Dropped | None:
        pieces = text.split()
        if not pieces:
            return Dropped(f"{_KIND}.empty", "The document has no words.")
        counts = sum(map(_COUNTS.__getitem__, pieces))
        words, spoken, characters, alphabetic = (counts >> _BITS * field & _MASK for field in range(4))
        return (
            self._by_words(spoken, characters)
            or self._by_symbols(text, words)
            or self._by_lines(text)
            or self._by_meaning(text, pieces, alphabetic / words)
        )

    def _by_words(self, words: int, characters: int) -> Dropped | None:
        measure = "The number of words that are not punctuation"
        if below(words, self._least_words):
            return dropped(_KIND, "too_short", measure, words, "doc_words", self._least_words)
        if above(words, self._most_words):
            return dropped(_KIND, "too_long", measure, words, "doc_words", self._most_words)
        if words:
            mean, measure = characters / words, "The mean length of a word in characters"
            if below(mean, self._least_length):
                return dropped(_KIND, "short_words", measure, mean, "avg_word_length", self._least_length)
            if above(mean, self._most_length):
                return dropped(_KIND, "long_words", measure, mean, "avg_word_length", self._most_length)
        return None

    def _by_symbols(self, text: str, words: int) -> Dropped | None:
        most, option = self._most_symbols, "max_symbol_word_ratio"
        hashes = text.count("#") / words
        if above(hashes, most):
            return dropped(_KIND, "too_many_hashes", "The number of hash signs a word", hashes, option, most)
        ellipses = (text.count("...") + text.count("\u2026")) / words
        if above(ellipses, most):
            return dropped(_KIND, "too_many_ellipses", "The number of ellipses a word", ellipses, option, most)
        return None

    def _by_lines(self, text: str) -> Dropped | None:
        lines = text.splitlines()
        most = self._most_bullets
        # the marks in the whole text are at least as many as those at the start of lines
        if above((text.count("-") + text.count("\u2022")) / len(lines), most):
            bullets = sum(line.lstrip().startswith(("\u2022", "-")) for line in lines) / len(lines)
            if above(bullets, most):
                measure = "The share of lines that start with a bullet"
                return dropped(_KIND, "too_many_bullets", measure, bullets, "max_bullet_lines_ratio", most)
        most = self._most_ellipses
        if above((text.count("...") + text.count("\u2026")) / len(lines), most):
            ellipses = sum(line.rstrip().endswith(("...", "\u2026")) for line in lines) / len(lines)
            if above(ellipses, most):
                measure = "The share of lines that end with an ellipsis"
                return dropped(_KIND, "too_many_ellipsis_lines", measure, ellipses, "max_ellipsis_lines_ratio", most)
        return None

    def _by_meaning(self, text: str, pieces: Sequence[str], alphabetic: float) -> Dropped | None:
        least = self._least_alphabetic
        if below(alphabetic, least):
            measure = "The share of words with a letter"
            return dropped(_KIND, "too_few_alphabetic_words", measure, alphabetic, "min_alpha_words_ratio", least)
        least = self._least_stops
        if not below(len(self._whole_stops.intersection(pieces[:_FIRST_PIECES])), least):
            return None
        stops = len(self._stops.intersection(words_of(text)))
        if below(stops, least):
            return dropped(_KIND, "too_few_stop_words", "The number of stop words", stops, "min_stop_words", least)
        return None

    @override
    def fingerprint(self) -> str:
        return fingerprint_of(
            _KIND,
            _VERSION,
            unicode=unidata_version,  # letters, marks and white space
            doc_words=[self._least_words, self._most_words],
            avg_word_length=[self._least_length, self._most_length],
            max_symbol_word_ratio=self._most_symbols,
            max_bullet_lines_ratio=self._most_bullets,
            max_ellipsis_lines_ratio=self._most_ellipses,
            min_alpha_words_ratio=self._least_alphabetic,
            min_stop_words=self._least_stops,
            stop_words=sorted(self._stops),
        )


def _counts(piece: str) -> int:
    """Return 40 bits each: words, words that are not punctuation, their characters, words with a letter."""
    packed = 0
    for word in words_of_piece(piece):
        if word.isalpha():  # no mark is a letter
            packed += _LETTERS_ALONE + (len(word) << 2 * _BITS)
        else:
            is_spoken = not PUNCTUATION.issuperset(word)
            has_letter = any(map(str.isalpha, word))
            packed += 1 + (is_spoken << _BITS) + (len(word) * is_spoken << 2 * _BITS) + (has_letter << 3 * _BITS)
    return packed


_LETTERS_ALONE = 1 | 1 << _BITS | 1 << 3 * _BITS
_COUNTS = PieceTable(_counts)
