"""Numbers, times and durations in tables, reports and pages; sizes in bytes are those of ``domain.sizes``."""

from __future__ import annotations

import math

from holdfast.adapters.shared.files.json_lines import without_non_finite
from holdfast.configs.error_messages import one_line

_SMALLEST = 0.001  # of the numbers that four digits after the point show


def number(value: float | str | None, longest: int = 80) -> str:
    """Return a number with four digits after the point if it is no whole number; "-" for None.

    Text, such as that of a number that JSON lacks, is put on one line of at most ``longest`` characters.
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        return one_line(value, longest)
    if isinstance(value, float) and not math.isfinite(value):
        return str(without_non_finite(value))
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:.4f}" if abs(value) >= _SMALLEST else f"{value:.3e}"


def share(value: float | str | None) -> str:
    """Return a share of one as a percentage; text and None as ``number`` does."""
    return f"{value:.1%}" if isinstance(value, float) and math.isfinite(value) else number(value)


def shown_rate(per_second: float) -> str:
    """Return a number of things a second."""
    return f"{per_second:.3g}" if per_second < 100 else f"{per_second:,.0f}"


def moment(time: str | None) -> str:
    """Return a time in ISO's form to the second, "-" for None."""
    return "-" if time is None else one_line(str(time))[: len("2026-11-25T15:57:28")].replace("T", " ")


def minute(time: str | None) -> str:
    """Return a time in ISO's form to the minute, "-" for None."""
    return moment(time)[: len("2026-11-25 15:57")]


def duration(seconds: float) -> str:
    """Return ``seconds`` to the second, and to the minute from an hour on."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def rough_duration(seconds: float) -> str:
    """Return ``seconds`` to the second, and to the minute from a minute and a half on."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
