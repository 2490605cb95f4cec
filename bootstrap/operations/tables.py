"""Figures and tables as a person reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.configs.error_messages import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_LONGEST_CELL = 200


def table(alignments: str, rows: Sequence[Sequence[str]]) -> Sequence[str]:
    """Return ``rows`` as lines; ``alignments`` has one ``<`` or ``>`` a column."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(format, row, map("{}{}".format, alignments, widths))).rstrip() for row in rows]


def shown(value: float | str | None, limit: int = _LONGEST_CELL) -> str:
    """Return a cell of at most ``limit`` characters of text, or a number."""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else one_line(value)[:limit]


def time_of(saved: str | None) -> str:
    """Return a time in ISO's form to the second."""
    return "-" if saved is None else saved[:19].replace("T", " ")


def readable(num_bytes: int | None) -> str:
    """Return a number of bytes in the largest unit that leaves a whole one."""
    if num_bytes is None:
        return "-"
    power = min((num_bytes.bit_length() - 1) // 10, len(_UNITS))
    return f"{num_bytes / 1024**power:.1f} {_UNITS[power - 1]}" if power > 0 else f"{num_bytes} B"
