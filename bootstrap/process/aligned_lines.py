"""Lines of ``key: value`` with aligned values."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

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
