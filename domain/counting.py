"""Counts of things, in words."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return ``number`` with its ``noun`` in the singular or the plural: 1 step, 2 steps."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
