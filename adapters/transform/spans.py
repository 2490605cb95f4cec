"""Replacement of places in a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Span = tuple[int, int]


def replaced(text: str, marks: Sequence[tuple[Span, str]]) -> str:
    """Return ``text`` with a mark in place of the characters of each span.

    If spans overlap, the one that begins first counts, and of those that begin together the one that is listed first.
    """
    parts, end = [], 0
    for (first, last), mark in sorted(marks, key=lambda each: each[0][0]):
        if first >= end:
            parts += [text[end:first], mark]
            end = last
    return "".join([*parts, text[end:]])
