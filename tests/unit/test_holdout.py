"""Which documents are held out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.holdout import Holdout

seeds = st.integers(-(2**63), 2**64 - 1)
texts = st.text(st.characters(), max_size=50)  # half surrogate pairs too
fractions = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5])
@pytest.mark.parametrize("seed", [0, 1, -5, 2**63])
def test_the_share_is_about_the_fraction(fraction, seed):
    """Of many documents about the given share is held out: within five standard deviations."""
    holdout = Holdout(fraction, seed)
    number = 10_000
    held = sum(holdout.holds(f"document {index}") for index in range(number))
    assert abs(held - number * fraction) < 5 * (number * fraction * (1 - fraction)) ** 0.5


@settings(deadline=None)
@given(documents=st.lists(texts, max_size=20), fraction=fractions, seed=seeds, data=st.data())
def test_the_side_depends_on_the_text_alone(documents, fraction, seed, data):
    """Equal texts lie on the same side, in whatever order and company they come."""
    sides = {text: Holdout(fraction, seed).holds(text) for text in documents}
    again = Holdout(fraction, seed)
    for text in data.draw(st.permutations(documents)):
        assert again.holds(text) == sides[text]


@settings(deadline=None)
@given(text=texts, seed=seeds, one=fractions, two=fractions)
def test_a_larger_share_keeps_what_a_smaller_one_held(text, seed, one, two):
    """Raising the fraction only adds documents to those held out."""
    smaller, larger = Holdout(min(one, two), seed), Holdout(max(one, two), seed)
    assert larger.holds(text) >= smaller.holds(text)


@settings(deadline=None)
@given(text=texts, seed=seeds)
def test_nothing_and_everything_can_be_held(text, seed):
    """A fraction of 0 holds nothing, a fraction of 1 everything."""
    assert not Holdout(0.0, seed).holds(text)
    assert Holdout(1.0, seed).holds(text)


def test_another_seed_holds_others():
    """Two seeds choose independently: about a quarter of the documents is held by both of two halves."""
    both = sum(Holdout(0.5, 0).holds(str(index)) and Holdout(0.5, 1).holds(str(index)) for index in range(4000))
    assert 850 < both < 1150


def test_the_choice_is_the_one_of_earlier_versions():
    """A document that was held out once is never trained on by a later version."""
    held = [index for index in range(200) if Holdout(0.05, 7).holds(f"document {index}")]
    assert held == [49, 58, 63, 86, 93, 98, 107, 117, 133, 169, 179, 189, 195, 198]
    assert [index for index in range(100) if Holdout(0.05, -1).holds(f"document {index}")] == [8, 12, 31, 82]
