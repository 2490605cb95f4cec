import random
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.data.near_duplicates import equal_documents, jaccard, normalized, similar_documents, text_digests

SETS = st.lists(st.sets(st.integers(0, 6), min_size=1, max_size=5), max_size=12)


def exact(texts):
    first, second = text_digests(texts)
    found = equal_documents(first, lambda numbers: second[numbers])
    return dict(zip(found.repeated.tolist(), found.survivors.tolist(), strict=True))


def similar(sets, threshold, bands=None):
    """Return what is found if all documents are in one bucket, unless ``bands`` are given."""
    arrays = [np.array(sorted(each), np.uint32) for each in sets]
    bands = [np.zeros(len(sets), np.uint64)] if bands is None else bands
    found = similar_documents(iter(bands), arrays.__getitem__, threshold)
    return dict(zip(found.repeated.tolist(), found.survivors.tolist(), strict=True))


@given(st.lists(st.sampled_from("abcdef")))
def test_the_first_of_equal_texts_stays(texts):
    """Each text that occurred before is left out, and the first with this text is its survivor."""
    expected = {number: texts.index(text) for number, text in enumerate(texts) if texts.index(text) < number}
    assert exact(texts) == expected


def test_both_halves_of_a_digest_count():
    """Documents that share only one half of the digest are different."""
    first, second = np.array([1, 1, 1, 2], np.uint64), np.array([5, 6, 5, 5], np.uint64)
    found = equal_documents(first, lambda numbers: second[numbers])
    assert (found.repeated.tolist(), found.survivors.tolist()) == ([2], [0])


def test_keys_of_all_sizes_are_grouped():
    """Keys from the first to the last are compared, although a part of them is taken at a time."""
    keys = np.array([2**64 - 1, 0, 2**63, 2**60, 2**60 - 1, 0, 2**64 - 1, 2**63, 2**60], np.uint64)
    found = equal_documents(keys, lambda numbers: np.zeros(len(numbers), np.uint64))
    assert found.repeated.tolist() == [5, 6, 7, 8]
    assert found.survivors.tolist() == [1, 0, 2, 3]


def test_a_few_bytes_a_document_are_enough():
    """Of a million documents, a third of them repeated, the search takes at most 24 bytes each besides the keys."""
    keys = np.random.default_rng(0).integers(0, 2**64, 10**6, np.uint64)
    keys[1::3] = keys[::3][: len(keys[1::3])]
    tracemalloc.start()
    try:
        found = equal_documents(keys, lambda numbers: np.zeros(len(numbers), np.uint64))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.repeated) == len(keys) // 3
    assert peak <= 24 * len(keys)


@given(SETS, st.sampled_from([0.2, 0.5, 0.8, 1.0]))
def test_a_document_is_left_out_if_an_earlier_one_is_similar(sets, threshold):
    """Exactly the documents with a similar earlier one are left out, and no survivor is left out."""
    expected = {
        number
        for number, own in enumerate(sets)
        if any(len(own & other) / len(own | other) >= threshold for other in sets[:number])
    }
    found = similar(sets, threshold)
    assert found.keys() == expected
    assert all(survivor < number and survivor not in found for number, survivor in found.items())


@given(SETS, SETS)
def test_later_documents_change_nothing_before_them(sets, later):
    """The result for some documents is the same when others follow."""
    whole = similar([*sets, *later], 0.5)
    assert {number: survivor for number, survivor in whole.items() if number < len(sets)} == similar(sets, 0.5)


def test_documents_without_a_common_band_are_not_compared():
    """Equal documents are duplicates only if they agree in a band; it may be any band."""
    bands = [np.array([1, 2, 3], np.uint64), np.array([4, 4, 5], np.uint64)]
    assert similar([{1}, {1}, {1}], 1.0, bands) == {1: 0}


def test_a_bucket_of_different_documents_is_cheap():
    """A document is compared with the first 64 of a bucket only."""
    calls = []

    def shingles(number):
        calls.append(number)
        return np.array([number], np.uint32)

    similar_documents([np.zeros(1000, np.uint64)], shingles, 0.8)
    assert len(calls) <= 1000 * 65


def test_survivors_of_chains_are_kept():
    """If each document resembles the one before, all but the first are left out, and the first is their survivor."""
    sets = [set(range(start, start + 10)) for start in range(6)]
    assert similar(sets, 0.8) == dict.fromkeys(range(1, 6), 0)


@pytest.mark.parametrize(
    ("first", "second"), [("A  b\n", "a b"), ("e\u0301", "É"), ("\u2003x\ty ", "X Y"), ("İ", "i\u0307")]
)
def test_normalized_texts_are_equal(first, second):
    """Case, the form of Unicode and the amount of white space do not count."""
    assert normalized(first) == normalized(second)


def test_punctuation_counts_in_normalized_texts():
    """Texts that differ in punctuation are different documents."""
    assert normalized("a b.") != normalized("a b")


def test_digests_are_those_of_sha256():
    """The digest of a known text does not change."""
    assert text_digests(["abc"]).astype("<u8").T.tobytes().hex() == "ba7816bf8f01cfea414140de5dae2223"


def test_jaccard_limits_by_size_lose_nothing():
    """Sets of very different sizes are still compared if the threshold allows it."""
    assert similar([set(range(4)), set(range(5))], 0.8) == {1: 0}
    assert jaccard(np.arange(4, dtype=np.uint32), np.arange(5, dtype=np.uint32)) == 0.8


def test_order_of_buckets_does_not_matter():
    """However the keys of a band are numbered, the same documents are left out."""
    rng = random.Random(0)
    sets = [set(rng.choices(range(8), k=5)) for _ in range(60)]
    keys = np.array([rng.randrange(4) for _ in sets], np.uint64)
    results = [similar(sets, 0.6, [keys * np.uint64(step) % np.uint64(7)]) for step in (1, 2, 3)]
    assert all(first == second for first, second in pairwise(results))
    assert results[0]
