"""Statistics of texts that several quality rules use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.ports.transform import Dropped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def repeated(parts: Sequence[str]) -> tuple[int, int]:
    """Return the number of ``parts`` that are equal to an earlier one, and the number of their characters."""
    distinct = set(parts)
    if len(distinct) == len(parts):
        return 0, 0
    return len(parts) - len(distinct), sum(map(len, parts)) - sum(map(len, distinct))


def above(share: float, most: float | None) -> bool:
    """Return whether ``share`` is above ``most``; None is no threshold."""
    return most is not None and share > most


def below(value: float, least: float | None) -> bool:
    """Return whether ``value`` is below ``least``; None is no threshold."""
    return least is not None and value < least


def dropped(kind: str, rule: str, found: str, value: float, option: str, limit: float | None) -> Dropped:
    """Return the verdict of ``rule``: ``found`` names what was measured, ``limit`` is that of ``option``."""
    shown = f"{value:d}" if isinstance(value, int) else f"{value:.4g}"
    return Dropped(f"{kind}.{rule}", f"{found} is {shown}, and {option} is {limit}.")


# code points in hexadecimal: one alone, a range, or every second one of a range ("/2")
_TERMINAL = (
    "21 2e 3f 589 61d-61f 6d4 700-702 7f9 837 839 83d-83e 964-965 104a-104b 1362 1367-1368 166e 1735-1736 17d4-17d6 "
    "17d9-17da 1803 1809 1944-1945 1aa8-1aab 1b5a-1b5b 1b5e-1b5f 1b7d-1b7e 1c3b-1c3c 1c7e-1c7f 203c-203d 2047-2049 "
    "2e2e 2e3c 2e53-2e54 3002 a4ff a60e-a60f a6f3 a6f7 a876-a877 a8ce-a8cf a92f a9c8-a9c9 aa5d-aa5f aaf0-aaf1 abeb "
    "fe52 fe56-fe57 ff01 ff0e ff1f ff61 10a56-10a57 10f55-10f59 10f86-10f89 11047-11048 110be-110c1 11141-11143 "
    "111c5-111c6 111cd 111de-111df 11238-11239 1123b-1123c 112a9 1144b-1144c 115c2-115c3 115c9-115d7 11641-11642 "
    "1173c-1173e 11944 11946 11a42-11a43 11a9b-11a9c 11c41-11c42 11ef7-11ef8 11f43-11f44 16a6e-16a6f 16af5 "
    "16b37-16b38 16b44 16e98 1bc9f 1da88"
)
# terminal marks that spaCy does not know
_NOT_IN_SPACY = (
    "61d-61e 837 839 83d-83e 17d4-17d6 17d9-17da 1b7d-1b7e 2e53-2e54 10f55-10f59 10f86-10f89 11944 11946 11ef7-11ef8 "
    "11f43-11f44 16e98"
)
_OTHER = (
    "0-8 b-1f 22-2d 2f 3a-3e 40 5b-60 7b-9f ab b4 bb 2013-2014 2019 201c-201e 2026 2236 2501 25ba 3001 3008-300d "
    "3010-3011 ff05 ff08-ff09 ff0c ff11 ff1a-ff1b ff5e"
)


def _characters(ranges: str) -> Iterator[str]:
    for each in ranges.split():
        first, _, last = each.partition("-")
        last, _, step = last.partition("/")
        yield from map(chr, range(int(first, 16), int(last or first, 16) + 1, int(step or 1)))


TERMINAL_MARKS = frozenset(_characters(_TERMINAL))
SENTENCE_ENDS = TERMINAL_MARKS - frozenset(_characters(_NOT_IN_SPACY))
# with control characters, as datatrove has them
PUNCTUATION = TERMINAL_MARKS | frozenset(_characters(_OTHER))


Span = tuple[int, int]


def replaced(text: str, marks: Sequence[tuple[Span, str]]) -> str:
    """Return ``text`` with a mark in place of the characters of each span.

    If spans overlap, the one that begins first counts, and of those that begin together the one that is listed first.
    """
    parts, end = [], 0
    for (first, last), mark in sorted(marks, key=lambda each: each[0][0]):
        if first >= end:
            parts += [text[end:first], mark]
            end = last
    return "".join([*parts, text[end:]])
