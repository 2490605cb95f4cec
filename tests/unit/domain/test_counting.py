"""Counts in words."""

from __future__ import annotations

import pytest

from holdfast.bootstrap.doctor.machine_limits import check_threads
from holdfast.domain.counting import counted


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


def test_processes_are_counted_in_words():
    """``doctor`` counts processors and processes in the plural that they have."""
    assert check_threads(4, None, 2).detail == "4 processors for 2 processes"
    assert check_threads(1, None, 1).detail == "1 processor for 1 process"
