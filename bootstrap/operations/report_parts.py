"""The parts of a report, which HTML and Markdown show alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    Rows = Sequence[Sequence[str]]


@final
@dataclass(frozen=True, slots=True)
class Table:
    """A table; the columns in ``numbers`` hold numbers. ``levels`` are words for the colours of the rows."""

    header: Sequence[str]
    rows: Rows
    numbers: frozenset[int] = frozenset()
    levels: Sequence[str] = ()


@final
@dataclass(frozen=True, slots=True)
class Code:
    """Text in the form in which it stands, such as a command."""

    text: str


@final
@dataclass(frozen=True, slots=True)
class Shares:
    """Parts of a whole: the name, the share from 0 to 1 and the amount of each, in words."""

    parts: Sequence[tuple[str, float, str]]


@final
@dataclass(frozen=True, slots=True)
class Marked:
    """A text to show as it is; the parts that are marked are trained on."""

    parts: Sequence[tuple[str, bool]]


Part = str | Table | Code | Shares | Marked


@final
@dataclass(frozen=True, slots=True)
class ReportSection:
    """A part of a report; ``is_folded`` if a reader rarely needs it."""

    title: str
    parts: Sequence[Part] = field(default_factory=tuple)
    is_folded: bool = False
