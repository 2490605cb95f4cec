"""Which documents are held out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.data.holdout import Holdout, hash_of
from holdfast.domain.errors import ConfigurationError

seeds = st.integers(-(2**63), 2**64 - 1)
texts = st.text(st.characters(), max_size=50)  # half surrogate pairs too
fractions = st.floats(0, 1, exclude_max=True)
hashes = st.lists(st.integers(0, 2**64 - 1), max_size=30).map(lambda numbers: np.array(numbers, np.uint64))


def documents(number):
    return np.array([hash_of(f"document {index}") for index in range(number)], np.uint64)


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5])
@pytest.mark.parametrize("seed", [0, 1, -5, 2**63])
def test_the_share_is_about_the_fraction(fraction, seed):
    """Of many documents about the given share is held out: within five standard deviations."""
    number = 10_000
    held = int(Holdout(fraction, seed).holds(documents(number)).sum())
    assert abs(held - number * fraction) < 5 * (number * fraction * (1 - fraction)) ** 0.5


@settings(deadline=None)
@given(documents=st.lists(texts, max_size=20), fraction=fractions, seed=seeds)
def test_the_side_depends_on_the_text_alone(documents, fraction, seed):
    """A text lies on the same side whether it is asked for by itself or by its hash among others."""
    holdout = Holdout(fraction, seed)
    held = holdout.holds(np.array([hash_of(text) for text in documents], np.uint64))
    assert held.dtype == np.bool_
    assert held.tolist() == [holdout.holds_text(text) for text in documents]


@settings(deadline=None)
@given(hashes=hashes, seed=seeds, one=fractions, two=fractions)
def test_a_larger_share_keeps_what_a_smaller_one_held(hashes, seed, one, two):
    """Raising the fraction only adds documents to those held out."""
    smaller, larger = Holdout(min(one, two), seed), Holdout(max(one, two), seed)
    assert (larger.holds(hashes) >= smaller.holds(hashes)).all()


@settings(deadline=None)
@given(hashes=hashes, seed=seeds)
def test_nothing_and_everything_can_be_held(hashes, seed):
    """A fraction of 0 holds nothing, a fraction of 1 everything."""
    assert not Holdout(0.0, seed).holds(hashes).any()
    assert Holdout(1.0, seed).holds(hashes).all()


@settings(deadline=None)
@given(hashes=hashes, folds=st.integers(1, 60), seed=seeds)
def test_each_document_is_in_one_fold(hashes, folds, seed):
    """Folds are disjoint and cover all documents."""
    held = np.array([Holdout.fold(index, folds, seed).holds(hashes) for index in range(folds)])
    assert (held.sum(axis=0) == 1).all()


def test_folds_are_about_equal():
    """Each of five folds holds about a fifth of the documents, and says so."""
    folds = [Holdout.fold(index, 5, 3) for index in range(5)]
    assert all(900 < fold.holds(documents(5000)).sum() < 1100 for fold in folds)
    assert all(fold.fraction == pytest.approx(0.2) for fold in folds)


@pytest.mark.parametrize(("index", "folds"), [(-1, 5), (5, 5), (0, 0)])
def test_there_is_no_such_fold(index, folds):
    """A fold beyond the last, or before the first, is refused with a sentence."""
    with pytest.raises(ConfigurationError, match=f"there is no fold {index} of {folds}"):
        Holdout.fold(index, folds, 0)


@settings(deadline=None)
@given(hashes=hashes.filter(len), seed=seeds)
def test_the_lowest_place_can_be_held_alone(hashes, seed):
    """Ending the hold-out just behind the lowest place holds that document, and no other place."""
    places = Holdout(0.0, seed).place_of(hashes)
    assert ((places >= 0) & (places < 1)).all()
    held = Holdout(float(np.nextafter(places.min(), 1.0)), seed).holds(hashes)
    assert held.tolist() == (places == places.min()).tolist()


@settings(deadline=None)
@given(number=st.integers(0, 2**64 - 1), seed=seeds)
def test_a_bound_belongs_to_what_begins_there(number, seed):
    """A document exactly at the bound of two hold-outs is held by the one that begins there."""
    hashes = np.array([number], np.uint64)
    place = float(Holdout(0.0, seed).place_of(hashes)[0])
    assert Holdout(1.0, seed, place).holds(hashes).all()
    assert not Holdout(place, seed).holds(hashes).any()


def test_another_seed_holds_others():
    """Two seeds choose independently: about a quarter of the documents is held by both of two halves."""
    both = Holdout(0.5, 0).holds(documents(4000)) & Holdout(0.5, 1).holds(documents(4000))
    assert 850 < both.sum() < 1150


@given(one=texts, two=texts)
def test_texts_are_told_apart(one, two):
    """Equal texts, and no others, have equal hashes of 64 bits."""
    assert (hash_of(one) == hash_of(two)) == (one == two)
    assert 0 <= hash_of(one) < 2**64


def test_the_choice_is_the_one_of_earlier_versions():
    """A document that was held out once is never trained on by a later version."""
    assert [hash_of(text) for text in ("", "text", "\ud800")] == [
        1449310910991872227,
        6482252961033366936,
        12997201164050212497,
    ]
    assert np.flatnonzero(Holdout(0.05, 7).holds(documents(200))).tolist() == [
        5,
        7,
        44,
        51,
        59,
        70,
        92,
        118,
        127,
        147,
        148,
        175,
        190,
    ]
    assert np.flatnonzero(Holdout.fold(3, 20, -1).holds(documents(100))).tolist() == [34, 40, 61, 62, 70, 96]
