"""Tables of text for a person."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_GAP = "  "
_ENDLESS = 100_000


def width_of_output() -> int:
    """Return the number of columns of the terminal, more than any table needs if the output is a file or a pipe."""
    return shutil.get_terminal_size((_ENDLESS, 24)).columns


def table(alignments: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return ``rows`` as lines; ``alignments`` has one ``<`` or ``>`` a column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [_GAP.join(map(format, row, map("{}{}".format, alignments, widths))).rstrip() for row in rows]


def table_within(width: int, alignments: str, rows: Sequence[Sequence[str]], spare: Sequence[int]) -> list[str]:
    """Return ``rows`` as lines of at most ``width`` characters, without the columns in ``spare`` that do not fit.

    The first of ``spare`` is left out first. If the rest is still too wide, the first column is cut.
    """
    kept = list(range(len(alignments)))
    for column in spare:
        if _width(rows, kept) <= width:
            break
        kept.remove(column)
    limit = max(8, width - _width(rows, kept[1:]) - len(_GAP))
    narrow = [[cut(row[0], limit), *(row[column] for column in kept[1:])] for row in rows]
    return table("".join(alignments[column] for column in kept), narrow)


def cut(text: str, limit: int) -> str:
    """Return ``text``, its end replaced by three dots if it is longer than ``limit`` characters."""
    return text if len(text) <= limit else f"{text[: max(0, limit - 3)]}..."


def _width(rows: Sequence[Sequence[str]], columns: Sequence[int]) -> int:
    return sum(max(len(row[column]) for row in rows) for column in columns) + len(_GAP) * (len(columns) - 1)


_NARROWEST = 40


def aligned(rows: Sequence[tuple[str, str]], *, whole: Sequence[str] = ()) -> str:
    """Return one line for each of ``rows``, a key and a value; a row with an empty key continues the one before.

    On a terminal a long value is continued in lines of its own, except the values of the keys in ``whole``, which are
    commands to copy.
    """
    left = max(len(key) for key, _ in rows) + 2
    width = max(shutil.get_terminal_size().columns, _NARROWEST) if sys.stdout.isatty() else 0
    lines, last = [], ""
    for key, value in rows:
        last = key or last
        parts = [value]
        if width and last not in whole:
            parts = textwrap.wrap(value, max(width - left, 1), break_on_hyphens=False) or [""]
        begins = [f"{key}:" if key else "", *[""] * (len(parts) - 1)]
        lines += [f"{begin:{left}}{part}" for begin, part in zip(begins, parts, strict=True)]
    return "\n".join(lines)
