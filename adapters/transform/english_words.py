"""A splitter of English text into words, which gives the words of spaCy's blank English pipeline."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar, final

from holdfast.adapters.transform.english_exceptions import exceptions
from holdfast.adapters.transform.english_rules import INFIX, PREFIX, SINGLE_SUFFIXES, SUFFIX, URL
from holdfast.adapters.transform.punctuation import SENTENCE_ENDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MOST_ENTRIES = 100_000
_MOST_CHARACTERS = 128
_END = 16  # characters, more than the longest suffix has, apart from full stops, with what stands before it
_LETTERS = re.compile(r"[A-Za-z]+")
# shortcuts, which do not change the result: no infix and no URL, and no prefix, in these
_NO_INFIX = re.compile(r"[A-Za-z0-9_']+")
_NO_PREFIX = frozenset("BDEFGHIJKLMNOPQRSTVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_SPACE = re.compile(r"(\s+)")
_DIGIT = re.compile("[0-9]")
_EXCEPTIONS = exceptions()
_LONGEST = max(map(len, _EXCEPTIONS))
_Value = TypeVar("_Value")


@final
class PieceTable(dict[str, _Value], Generic[_Value]):
    """Values of ``function`` by its argument, a piece of text without white space.

    It remembers up to 200,000 pieces of at most 128 characters, fewer if they are long, some 60 MB: when it is half
    full, the older half is given up. Usable from several threads at once, if the function is pure.
    """

    def __init__(self, function: Callable[[str], _Value]) -> None:
        super().__init__()
        self._function = function
        self._older: Mapping[str, _Value] = {}
        self._size = 0

    def __missing__(self, piece: str) -> _Value:
        if len(piece) > _MOST_CHARACTERS:
            return self._function(piece)
        if self._size >= _MOST_ENTRIES:
            self._older, self._size = self.copy(), 0
            self.clear()
        self._size += 1 + len(piece) // 16
        older = self._older
        self[piece] = value = older[piece] if piece in older else self._function(piece)
        return value


def words_of(text: str) -> list[str]:
    """Return the words of ``text`` in order; punctuation marks are words of their own, white space is left out.

    The text is cut at white space, then prefixes, suffixes and infixes are cut off each piece, as spaCy does.
    A difference from spaCy: each piece is split by itself. In spaCy an emoticon with a space inside, as in ``:) )``, is
    no emoticon, and the mark before the space is no part of a shorter emoticon.
    """
    return list(chain.from_iterable(map(_WORDS.__getitem__, text.split())))


def words_of_piece(piece: str) -> tuple[str, ...]:
    """Return the words of ``piece``, which has no white space."""
    return _WORDS[piece]


def count_sentences(text: str) -> int:
    """Return the number of sentences of ``text`` as spaCy's ``sentencizer`` counts them, at least 1.

    A sentence ends before the first word that is no punctuation after a word that is a full stop or the like.
    White space other than a single space is such a word too.
    """
    found, is_over = 1, False
    for piece in filter(None, _SPACE.split(text)):
        for word in (piece,) if piece.isspace() else _WORDS[piece]:
            if word in SENTENCE_ENDS:
                is_over = True
            elif is_over and word != " " and not _is_punctuation(word):
                is_over = False
                found += 1
    return found


def _is_punctuation(word: str) -> bool:
    return all(unicodedata.category(character)[0] == "P" for character in word)


def _split(piece: str) -> tuple[str, ...]:
    if piece in _EXCEPTIONS:
        return _EXCEPTIONS[piece]
    if _LETTERS.fullmatch(piece):
        return (piece,)
    return _with_exceptions(tuple(_cut(piece, _EXCEPTIONS)))


_WORDS = PieceTable(_split)


def _cut(piece: str, whole: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the words of ``piece`` by the rules for affixes; what is left is looked up in ``whole``.

    This is ``_split_affixes`` and ``_attach_tokens`` of spacy/tokenizer.pyx.
    """
    words: list[str] = []
    suffixes: list[str] = []
    first, last = 0, len(piece)
    while first < last and not (last - first <= _LONGEST and piece[first:last] in whole):
        prefix = None if piece[first] in _NO_PREFIX else PREFIX.match(piece, first, last)
        start = prefix.end() if prefix else first
        if prefix and last - start <= _LONGEST and piece[start:last] in whole:
            words.append(piece[first:start])
            first = start
            break
        stop = _start_of_suffix(piece, start, last)
        if stop < last and stop - first <= _LONGEST and piece[first:stop] in whole:
            suffixes.append(piece[stop:last])
            last = stop
            break
        if start == first and stop == last:
            break
        if prefix:
            words.append(piece[first:start])
        if stop < last:
            suffixes.append(piece[stop:last])
        first, last = start, stop
    if first < last:
        words += _middle(piece[first:last], whole)
    if suffixes:
        words += reversed(suffixes)
    return words


def _start_of_suffix(piece: str, first: int, last: int) -> int:
    if first == last:
        return last
    end = piece[last - 1]
    if end in SINGLE_SUFFIXES:
        return last - 1
    if end in "0123456789":
        return last
    if end.isascii() and end.isalpha() and not _DIGIT.search(piece, first, last) and piece[last - 2] not in "'\u2019":
        return last  # neither a unit behind a number nor a genitive
    stops = last
    while stops > first and piece[stops - 1] == ".":
        stops -= 1
    start = max(first, stops - _END)
    suffix = SUFFIX.search(piece[start:last])
    return start + suffix.start() if suffix else last


def _middle(text: str, whole: Mapping[str, tuple[str, ...]]) -> Sequence[str]:
    if text in whole:
        return whole[text]
    if _NO_INFIX.fullmatch(text) or ("." in text and URL.match(text)):
        return (text,)
    words: list[str] = []
    start = 0
    for infix in INFIX.finditer(text):
        if infix.start():
            words += filter(None, (text[start : infix.start()], infix.group()))
            start = infix.end()
    if start < len(text):
        words.append(text[start:])
    return words


def _with_exceptions(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return ``words`` with those that the rules cut from an exception as the exception says.

    The longest exceptions come first. This is ``_apply_special_cases`` of spacy/tokenizer.pyx.
    """
    cuts, lengths = _exceptions_cut()
    if lengths.keys().isdisjoint(words):
        return words
    spans = [
        (first, first + length)
        for first in range(len(words))
        for length in lengths.get(words[first], ())
        if first + length <= len(words) and words[first : first + length] in cuts
    ]
    if not spans:
        return words
    chosen, seen = {}, set[int]()
    for first, last in sorted(spans, key=lambda span: (span[0] - span[1], span[0])):
        if first not in seen and last - 1 not in seen:
            chosen[first] = last
        seen.update(range(first, last))
    changed: list[str] = []
    first = 0
    while first < len(words):
        last = chosen.get(first, first + 1)
        changed += cuts[words[first:last]] if first in chosen else words[first:last]
        first = last
    return tuple(changed)


@cache
def _exceptions_cut() -> tuple[Mapping[tuple[str, ...], tuple[str, ...]], Mapping[str, set[int]]]:
    """Return the parts of exceptions by the words that the rules make of them, and the lengths by the first word."""
    cuts = {}
    lengths: dict[str, set[int]] = {}
    for word, parts in exceptions().items():
        if PREFIX.match(word) or INFIX.search(word) or SUFFIX.search(word):
            cut = tuple(_cut(word, {}))
            cuts[cut] = parts
            lengths.setdefault(cut[0], set()).add(len(cut))
    return cuts, lengths
