"""Rows of training data as lines for a person, with marks around what is trained on."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TextIO

Part = tuple[str, bool]
"""A text and whether it is trained on."""

_GREEN, _DIM, _PLAIN = "\x1b[32m", "\x1b[2m", "\x1b[0m"
_BETWEEN = "-" * 8


def has_colors(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal that shows colors, unless NO_COLOR is set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def row_lines(
    rows: Sequence[Sequence[Sequence[Part]]], *, is_colored: bool, longest: int | None = None
) -> Iterator[str]:
    """Yield the lines of ``rows``, each a list of documents, each a list of parts.

    What is trained on is green if ``is_colored``, and else in double brackets. A row is cut after ``longest``
    characters. Characters that a terminal would obey are escaped.
    """
    for number, row in enumerate(rows, 1):
        yield f"row {number} of {len(rows)}, {_legend(is_colored=is_colored)}:"
        room = longest
        for place, document in enumerate(row):
            if place:
                yield _BETWEEN
            parts, room = _cut(document, room)
            shown = "".join(_marked(text, is_trained=trained, is_colored=is_colored) for text, trained in parts)
            yield from shown.removesuffix("\n").split("\n")
            if room == 0:
                yield "... (the rest of the row is not shown)"
                break


def _legend(*, is_colored: bool) -> str:
    return f"trained on what is {_GREEN}green{_PLAIN}" if is_colored else "trained on what is in [[ ]]"


def _cut(document: Sequence[Part], room: int | None) -> tuple[Sequence[Part], int | None]:
    """Return the first ``room`` characters of ``document``, and the room that is left."""
    if room is None:
        return document, None
    parts = []
    for text, is_trained in document:
        if room == 0:
            break
        parts.append((text[:room], is_trained))
        room -= len(text[:room])
    return parts, room


def _marked(text: str, *, is_trained: bool, is_colored: bool) -> str:
    shown = "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in text)
    if not is_colored:
        return f"[[{shown}]]" if is_trained else shown
    begin = _GREEN if is_trained else _DIM
    return "\n".join(f"{begin}{line}{_PLAIN}" if line else "" for line in shown.split("\n"))
