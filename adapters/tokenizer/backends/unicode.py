"""Characters on whose nature libraries do not agree."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING

from tokenizers import Regex, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Iterable

# planes 4 to 13 hold nothing, 15 and 16 are private use for good
_ASSIGNABLE = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))


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


def find_unsettled(documents: Iterable[str]) -> list[int]:
    """Return which documents hold unsettled characters."""
    return [index for index, text in enumerate(documents) if not text.isascii() and _is_unsettled(text)]


def _is_unsettled(text: str) -> bool:
    return any(ord(found) in _far() or found in unsettled_characters() for found in _candidates().findall(text))


def _far() -> range:
    return range(0x40000, 0xE0000)


@cache
def _candidates() -> re.Pattern[str]:
    # one table for the basic plane and one range behind it: many ranges behind it would be searched one by one
    near = "".join(character for character in sorted(unsettled_characters()) if character <= "\uffff")
    return re.compile(f"[{re.escape(near)}\U00010000-\U0010ffff]")
