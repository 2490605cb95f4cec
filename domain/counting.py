"""Counts of things, in words."""

from __future__ import annotations


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return ``number`` with its ``noun`` or the ``plural``, which by default ends with an s: 1 step, 2 steps."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
