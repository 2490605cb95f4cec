"""Statistics of texts that several quality rules use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.ports.transform import Dropped

if TYPE_CHECKING:
    from collections.abc import Sequence


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
