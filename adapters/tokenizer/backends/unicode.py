"""Characters on whose nature libraries do not agree."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Regex, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# planes 4 to 13 hold nothing, 15 and 16 are private use for good
_FAR = range(0x40000, 0xE0000)
_ASSIGNABLE = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))
_CANDIDATES = re.compile("[\x80-\U0010ffff]")
_FIRST_SUSPECT = 0x378  # what lies before it was assigned long ago
_BUILDING = Lock()


@cache
def unsettled_characters() -> frozenset[str]:
    """Return the characters that this Python or ``tokenizers`` calls unassigned.

    Whether such a character is a letter depends on the version of Unicode that a library was built with: gigatoken
    0.10 has 17, tokenizers 0.23 has 16. What is assigned keeps its nature in later versions.
    """
    everything = "".join(chr(point) for points in _ASSIGNABLE for point in points)
    unassigned = pre_tokenizers.Split(Regex(r"\P{Cn}+"), "removed").pre_tokenize_str(everything)
    theirs = {character for part, _ in unassigned for character in part}
    return frozenset(theirs | {character for character in everything if unicodedata.category(character) == "Cn"})


def know_unsettled() -> None:
    """Make what ``find_unsettled`` looks things up in."""
    _suspects()


def find_unsettled(documents: Sequence[str]) -> list[int]:
    """Return which documents hold unsettled characters."""
    others = [index for index, text in enumerate(documents) if not text.isascii()]
    if not others or not _is_suspect("".join(documents[index] for index in others)):  # all at once: seldom one is
        return []
    return [index for index in others if _is_suspect(documents[index]) and _is_unsettled(documents[index])]


def _is_suspect(text: str) -> bool:
    units = np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2")
    return bool(units.max() >= _FIRST_SUSPECT and _suspects()[units[units >= _FIRST_SUSPECT]].any())


def _is_unsettled(text: str) -> bool:
    return any(ord(found) in _FAR or found in unsettled_characters() for found in _CANDIDATES.findall(text))


def _suspects() -> NDArray[np.bool_]:
    """Return which units of UTF-16 are, or may be half of, an unsettled character: bool (65536,)."""
    with _BUILDING:  # it takes a quarter of a second, once
        return _build_suspects()


@cache
def _build_suspects() -> NDArray[np.bool_]:
    suspects = np.zeros(1 << 16, np.bool_)
    suspects[0xD800:0xE000] = True
    suspects[[ord(character) for character in unsettled_characters() if character <= "\uffff"]] = True
    return suspects
