"""Tables of text for a person."""

from __future__ import annotations

import shutil
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
