"""Counts in words."""

from __future__ import annotations

import pytest

from holdfast.domain.sizes import counted


@pytest.mark.parametrize(
    ("number", "nouns", "text"),
    [
        (1, ["step"], "1 step"),
        (0, ["step"], "0 steps"),
        (1234, ["step"], "1,234 steps"),
        (1, ["entry", "entries"], "1 entry"),
        (2, ["entry", "entries"], "2 entries"),
    ],
)
def test_a_noun_follows_its_number(number, nouns, text):
    """One thing is singular, any other number is plural, and a plural without an s is given."""
    assert counted(number, *nouns) == text
