"""Augmentation: other versions of documents, for texts that are read more than once or for code."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, final

import numpy as np
from typing_extensions import override

from holdfast.adapters.transform.rule_options import (
    fingerprint_of,
    finite_number,
    mapping_of,
    unicode_text,
    whole_number,
)
from holdfast.domain.data.permutation import mix
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.transform import Transform

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

_GAPS = re.compile(r"(\s+)")
_SENTENCE_ENDS = re.compile(r"((?<=[.!?])[ \t]+)")
_LETTERS = 3  # at least, in a word that gets a typing error


class Draws:
    """Random numbers that depend on a text and a seed alone."""

    def __init__(self, text: str, seed: int) -> None:
        digest = blake2b(text.encode(), digest_size=8, salt=blake2b(str(seed).encode(), digest_size=16).digest())
        self._state = int.from_bytes(digest.digest(), "little")

    def shares(self, number: int) -> NDArray[np.float64]:
        """Return the next ``number`` random numbers from 0 up to below 1, float64 (number,)."""
        # the states are apart by more than the numbers that a text takes, as 2**-64 of them would be
        values = mix(np.arange(number, dtype=np.uint64) + np.uint64(self._state))
        self._state = int(mix(np.array([self._state ^ 0xA5A5A5A5A5A5A5A5], np.uint64))[0])
        return (values >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)

    def share(self) -> float:
        """Return the next random number from 0 up to below 1."""
        return float(self.shares(1)[0])

    def number(self, size: int) -> int:
        """Return a random whole number from 0 up to below ``size``."""
        return int(self.share() * size)

    def shuffled(self, parts: Sequence[str]) -> list[str]:
        """Return ``parts`` in a random order."""
        return [parts[place] for place in np.argsort(self.shares(len(parts)), kind="stable")]


def change_case(text: str, draws: Draws, share: float) -> str:
    """Return ``text`` with a ``share`` of its words in capital letters, in small letters or with a capital letter."""
    return _change(text, draws, share, lambda word, number: (word.upper(), word.lower(), word.capitalize())[number % 3])


def change_spaces(text: str, draws: Draws, share: float) -> str:
    """Return ``text`` with a ``share`` of its gaps doubled, as a tabulator, as a new line, or left out."""
    return _change(text, draws, share, lambda gap, number: (gap + gap, "\t", "\n", "")[number % 4], of_gaps=True)


def make_typos(text: str, draws: Draws, share: float) -> str:
    """Return ``text`` with a typing error in a ``share`` of its words of three letters or more.

    Two neighboring letters are exchanged, as in Belinkov, Bisk: Synthetic and natural noise both break neural machine
    translation, 2018, or one is left out or doubled. The first letter stays.
    """
    return _change(text, draws, share, _with_typo)


def shuffle_sentences(text: str, draws: Draws, _share: float) -> str:
    """Return ``text`` with the sentences of each line in a random order."""
    return "\n".join(_shuffled_sentences(line, draws) for line in text.split("\n"))


def shuffle_lines(text: str, draws: Draws, _share: float) -> str:
    """Return ``text`` with its lines in a random order; blank lines stay in their places."""
    lines = text.split("\n")
    places = [place for place, line in enumerate(lines) if line.strip()]
    for place, line in zip(places, draws.shuffled([lines[place] for place in places]), strict=True):
        lines[place] = line
    return "\n".join(lines)


def _change(text: str, draws: Draws, share: float, change: Callable[[str, int], str], *, of_gaps: bool = False) -> str:
    parts = _GAPS.split(text)  # words and gaps take turns
    num_parts = len(parts[of_gaps::2])
    chosen = np.flatnonzero(draws.shares(num_parts) < share)
    for place, number in zip(2 * chosen + of_gaps, draws.shares(len(chosen)), strict=True):
        parts[place] = change(parts[place], int(number * (1 << 30)))
    return "".join(parts)


def _with_typo(word: str, number: int) -> str:
    if len(word) < _LETTERS or not word.isalpha():
        return word
    kind, rest = number % 3, number // 3
    place = 1 + rest % (len(word) - 2)
    inserted = (word[place + 1] + word[place], word[place + 1], word[place] * 2 + word[place + 1])[kind]
    return word[:place] + inserted + word[place + 2 :]


def _shuffled_sentences(line: str, draws: Draws) -> str:
    parts = _SENTENCE_ENDS.split(line)
    parts[::2] = draws.shuffled(parts[::2])
    return "".join(parts)


_KIND = "augment"
_VERSION = 1
_CHANGES = {
    "case": change_case,
    "whitespace": change_spaces,
    "typos": make_typos,
    "sentences": shuffle_sentences,
    "lines": shuffle_lines,
}
_MARKS = {"prefix": "<fim_prefix>", "suffix": "<fim_suffix>", "middle": "<fim_middle>"}


@final
class AugmentTransform(Transform):
    """Changes documents at random: noise, another order of their parts, or fill-in-the-middle.

    A share of the documents, ``probability``, gets one of the changes case, whitespace, typos, sentences and lines,
    which are chosen by ``weights`` (equal by default). Case, whitespace and typos change a share ``noise`` of the
    words. Then a share ``fim_rate`` is cut at two random characters and rearranged for fill-in-the-middle, of which a
    share ``fim_spm_rate`` in the order suffix, prefix, middle, and the others in the order prefix, suffix, middle
    (arXiv 2207.14255; ``fim_marks`` are StarCoder's by default). A document that contains a mark is not rearranged.

    The randomness depends on the text and ``seed`` alone: a document is changed in the same way whenever it is read.

    The marks are text like any other: tokenizers of Holdfast never read a special token out of a document, so a mark
    that is a special token of the tokenizer is learned as the several ordinary tokens of its spelling. A mark becomes
    a single token if ``added_tokens`` of tokenizer.json contains it with special false.

    Raises ``ConfigurationError`` if an option is wrong, or if both ``probability`` and ``fim_rate`` are 0.
    """

    def __init__(
        self,
        *,
        probability: float = 0.0,
        weights: Mapping[str, float] | None = None,
        noise: float = 0.05,
        seed: int = 0,
        fim_rate: float = 0.0,
        fim_spm_rate: float = 0.5,
        fim_marks: Mapping[str, str] | None = None,
    ) -> None:
        self._probability = finite_number(_KIND, "probability", probability, least=0, most=1)
        self._fim_rate = finite_number(_KIND, "fim_rate", fim_rate, least=0, most=1)
        if self._probability == self._fim_rate == 0:
            msg = f"transform '{_KIND}' changes nothing: give it probability, fim_rate or both"
            raise ConfigurationError(msg)
        self._weights = _checked_weights(weights)
        self._noise = finite_number(_KIND, "noise", noise, least=0, most=1)
        self._seed = whole_number(_KIND, "seed", seed)
        self._spm_rate = finite_number(_KIND, "fim_spm_rate", fim_spm_rate, least=0, most=1)
        self._marks = _checked_marks(fim_marks)
        self._bounds = np.cumsum([*self._weights.values()]) / sum(self._weights.values())

    @override
    def __call__(self, text: str) -> str | None:
        draws = Draws(text, self._seed)
        if draws.share() < self._probability:
            place = int(np.searchsorted(self._bounds, draws.share(), side="right"))
            text = _CHANGES[[*self._weights][place]](text, draws, self._noise)
        if draws.share() < self._fim_rate and not self._marks.occur_in(text):
            first, second = sorted((draws.number(len(text) + 1), draws.number(len(text) + 1)))
            order: Order = "spm" if draws.share() < self._spm_rate else "psm"
            text = fill_in_the_middle(text, first, second, self._marks, order)
        return text

    @override
    def fingerprint(self) -> str:
        options = {"probability": self._probability, "noise": self._noise, "weights": self._weights}
        marks = [self._marks.prefix, self._marks.suffix, self._marks.middle]
        fim = {"fim_rate": self._fim_rate, "fim_spm_rate": self._spm_rate, "fim_marks": marks}
        unicode = unicodedata.unidata_version
        return fingerprint_of(_KIND, _VERSION, **options, **fim, seed=self._seed, unicode=unicode)


def _checked_weights(weights: Mapping[str, float] | None) -> Mapping[str, float]:
    """Return the weights above 0, in the order of the changes."""
    given = mapping_of(_KIND, "weights", weights, _CHANGES) or dict.fromkeys(_CHANGES, 1.0)
    checked = {name: finite_number(_KIND, f"{name} of weights", given.get(name, 0), least=0) for name in _CHANGES}
    if sum(checked.values()) == 0:
        msg = f"weights of transform '{_KIND}' are all 0: give one of them a number above 0"
        raise ConfigurationError(msg)
    return {name: weight for name, weight in checked.items() if weight}


def _checked_marks(marks: Mapping[str, str] | None) -> Marks:
    given = {**_MARKS, **mapping_of(_KIND, "fim_marks", marks, _MARKS)}
    checked = {name: unicode_text(_KIND, f"{name} of fim_marks", mark) for name, mark in given.items()}
    if len({*checked.values()}) < len(checked) or "" in checked.values():
        msg = f"fim_marks of transform '{_KIND}' must be three different texts, none of them empty"
        raise ConfigurationError(msg)
    return Marks(**checked)


Order = Literal["psm", "spm"]


@dataclass(frozen=True)
class Marks:
    """The texts that announce the parts of a rearranged document."""

    prefix: str
    suffix: str
    middle: str

    def occur_in(self, text: str) -> bool:
        """Return whether ``text`` contains one of the marks, so that its parts could not be told apart."""
        return any(mark in text for mark in (self.prefix, self.suffix, self.middle))


def fill_in_the_middle(text: str, first: int, second: int, marks: Marks, order: Order) -> str:
    """Return ``text`` with its characters from ``first`` to ``second`` at the end.

    The order psm is prefix, suffix, middle; spm is suffix, prefix, middle, with the marks as in the joint training of
    both orders (Bavarian et al.: Efficient training of language models to fill in the middle, arXiv 2207.14255,
    section 3 and appendix D).
    """
    prefix, middle, suffix = text[:first], text[first:second], text[second:]
    if order == "psm":
        return f"{marks.prefix}{prefix}{marks.suffix}{suffix}{marks.middle}{middle}"
    return f"{marks.prefix}{marks.suffix}{suffix}{marks.middle}{prefix}{middle}"
