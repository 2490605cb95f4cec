"""Noise in texts and other orders of their parts, each a pure function of a text and of random numbers."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

from holdfast.domain.data.permutation import mix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

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
