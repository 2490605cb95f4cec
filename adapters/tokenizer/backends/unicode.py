"""Characters that libraries classify differently."""

from __future__ import annotations

import unicodedata
from functools import cache
from itertools import accumulate
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Regex, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

# planes 4 to 13 and the rest of 14 are empty; 15 and 16 are private use for good
_EMPTY = slice(0x40000, 0xF0000)
_ASSIGNABLE = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0xE1000))
_FIRST_UNSETTLED = 0x378  # earlier characters were assigned long ago
_BUILDING = Lock()


def find_unsettled(documents: Sequence[str]) -> list[int]:
    """Return which documents hold characters that this Python or ``tokenizers`` calls unassigned.

    Whether such a character is a letter depends on the version of Unicode that a library was built with: gigatoken
    0.10 has 17, tokenizers 0.23 has 16. Assigned characters keep their category in later versions.
    """
    others = [index for index, text in enumerate(documents) if not text.isascii()]
    if not others:
        return []
    together = "".join([documents[index] for index in others])  # all at once: most documents have none
    points = np.frombuffer(together.encode("utf-32-le", "surrogatepass"), "<u4")
    places = np.flatnonzero(points >= _FIRST_UNSETTLED)
    places = places[is_unsettled()[points[places]]]
    if not len(places):
        return []
    ends = list(accumulate(len(documents[index]) for index in others))
    return [others[number] for number in np.unique(np.searchsorted(ends, places, side="right")).tolist()]


def is_unsettled() -> NDArray[np.bool_]:
    """Return for each code point whether libraries may disagree on it: bool (0x110000,)."""
    with _BUILDING:  # it takes a quarter of a second, once a process
        return _build_table()


@cache
def _build_table() -> NDArray[np.bool_]:
    everything = "".join(chr(point) for points in _ASSIGNABLE for point in points)
    unassigned = pre_tokenizers.Split(Regex(r"\P{Cn}+"), "removed").pre_tokenize_str(everything)
    theirs = "".join(part for part, _ in unassigned)
    ours = "".join(character for character in everything if unicodedata.category(character) == "Cn")
    table = np.zeros(0x110000, np.bool_)
    table[_EMPTY] = True
    table[list(map(ord, everything))] = False
    table[list(map(ord, theirs + ours))] = True
    table.flags.writeable = False
    return table
