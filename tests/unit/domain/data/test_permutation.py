"""Keyed permutations."""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.data.permutation import key_words, mix, permute

keys = st.lists(st.integers(-(2**64), 2**65), max_size=4)
# around the bound between the two ways of permuting, and around squares, where the digits' base changes
sizes = st.one_of(st.integers(1, 40), st.integers(1000, 1100), st.integers(1, 3000))


def whole(size, *key):
    return permute(np.arange(size), size, *key)


def chi_square(counts):
    """How many standard deviations the counts' chi-square lies from what even chances give."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return (((counts - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5


@settings(deadline=None)
@given(size=sizes, key=keys)
def test_each_place_is_taken_once(size, key):
    """A permutation of any size sends all places to all places, int64."""
    images = whole(size, *key)
    assert images.dtype == np.int64
    assert sorted(images.tolist()) == list(range(size))


@settings(deadline=None)
@given(size=sizes, key=keys, data=st.data())
def test_each_place_is_computed_by_itself(size, key, data):
    """Whatever places are asked for, in whatever order, shape and number, each goes where it goes in the whole."""
    places = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    expected = whole(size, *key)[places]
    assert permute(places, size, *key).tolist() == expected.tolist()
    assert permute(places.reshape(1, -1), size, *key).tolist() == [expected.tolist()]


@settings(deadline=None)
@given(size=st.integers(2**20, 2**62), key=keys, data=st.data())
def test_large_sizes_stay_inside(size, key, data):
    """Of large sizes too, different places go to different places inside."""
    places = np.array(sorted({0, size - 1, *data.draw(st.lists(st.integers(0, size - 1), max_size=50))}))
    before = places.copy()
    images = permute(places, size, *key)
    assert images.min() >= 0
    assert images.max() < size
    assert len(set(images.tolist())) == len(places)
    assert (places == before).all()


@pytest.mark.parametrize("size", [0, 1])
def test_nothing_to_permute(size):
    """Sizes 0 and 1 have one permutation."""
    assert whole(size, 5).tolist() == list(range(size))


@pytest.mark.parametrize(("size", "number"), [(2, 2), (3, 6), (4, 24)])
def test_small_sizes_have_all_their_permutations(size, number):
    """Over many keys each permutation of two, three or four comes about equally often."""
    orders = np.array([whole(size, 3, key) for key in range(3000)]) @ 10 ** np.arange(size)
    _, counts = np.unique(orders, return_counts=True)
    assert len(counts) == number
    assert abs(chi_square(counts)) < 5


@pytest.mark.parametrize("size", [64, 1024, 2048, 2**40])
def test_each_image_is_equally_likely(size):
    """Over many keys the first, a middle and the last place, and the way between neighbours, spread evenly."""
    places = np.array([0, 1, size // 2, size - 1])
    images = np.array([permute(places, size, 11, key) for key in range(3000)])
    ways = (images[:, 1] - images[:, 0]) % size
    for values in (*images.T, ways):
        assert abs(chi_square(np.bincount(values * 32 // size, minlength=32))) < 5


@pytest.mark.parametrize("size", [2**14, 100_000, 2**18])
def test_images_tell_nothing_of_each_other(size):
    """In one permutation neither the place, nor the neighbour, nor the place under another key tells the image."""
    images, others = whole(size, 1, 2), whole(size, 1, 3)
    row = int(size**0.5)
    for one, two in (
        (np.arange(size), images),
        (images[:-1], images[1:]),
        (images[row:], images[:-row]),
        (images, others),
    ):
        pairs = np.bincount(one * 16 // size * 16 + two * 16 // size, minlength=256)
        assert abs(chi_square(pairs)) < 5
    assert (np.abs(np.diff(images)) == 1).sum() < 12


@settings(deadline=None)
@given(key=keys, other=keys)
def test_keys_are_told_apart(key, other):
    """Different integers, in number, order, sign or beyond 64 bits, choose different words."""
    assert (key_words(*key).tolist() == key_words(*other).tolist()) == (key == other)


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8])
def test_numpy_integers_are_integers(kind):
    """A key is its numbers, whatever type holds them."""
    assert whole(10, kind(3), kind(7)).tolist() == whole(10, 3, 7).tolist()


def test_mixing_keeps_numbers_apart():
    """Mixing is one to one and changes about half of the bits when one of them changes."""
    numbers = np.arange(1000, dtype=np.uint64)
    mixed = mix(numbers)
    assert len(set(mixed.tolist())) == 1000
    assert 30 < np.bitwise_count(mixed[:-1] ^ mixed[1:]).mean() < 34
    assert numbers.tolist() == list(range(1000))


def test_permutations_are_those_of_earlier_versions():
    """A run resumes in the order that it began with, whatever version of the code or of numpy began it."""
    assert whole(10, 0).tolist() == [0, 8, 5, 9, 6, 1, 3, 4, 2, 7]
    assert whole(10, -1, 2**64).tolist() == [9, 3, 7, 5, 4, 1, 2, 0, 8, 6]
    assert permute(np.array([0, 1, 2, 2**40 - 1]), 2**40, 7, 0).tolist() == [
        105994784947,
        189147017413,
        732153249059,
        12542543788,
    ]
    digests = [sha256(whole(size, 3, 4).astype("<i8").tobytes()).hexdigest()[:16] for size in (1024, 1025, 100_000)]
    assert digests == ["0b573e2268571ef9", "d41b665336a512d4", "f7895a5b8ec7f19c"]
