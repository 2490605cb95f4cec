"""No document in training resembles one that is held out."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.data_source.memory import MemoryDataSource
from holdfast.adapters.data_source.python_library import PythonLibraryDataSource
from holdfast.application.data.choose_holdout import choose_groups
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.data.near_duplicates import shingles_of
from holdfast.domain.errors import DataError

WORDS = [f"word{number}" for number in range(3000)]


class Store:
    def __init__(self):
        self.found = {}

    def load(self, group, name):
        return self.found.get((group, name))

    def store(self, group, name, arrays):
        self.found[group, name] = arrays


def text_of(*key, length=60):
    return " ".join(random.Random(str(key)).choices(WORDS, k=length))


def family(number, size):
    return [f"{text_of(number)} {text_of(number, copy, length=5)}" for copy in range(size)]


def chosen(texts, wanted, said=None, **options):
    source = MemoryDataSource({"unit": texts})
    return choose_groups(source, wanted, Store(), (said if said is not None else []).append, **options)


@settings(deadline=None, max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=40),
    fraction=st.floats(0.01, 0.5),
    seed=st.integers(0, 2**32),
)
def test_families_are_held_out_as_a_whole_and_some_are_trained_on(sizes, fraction, seed):
    """Whatever their sizes, and at least the share is held out as far as there are families that are not larger."""
    texts = [family(number, size) for number, size in enumerate(sizes)]
    holdout = chosen([text for each in texts for text in each], Holdout(fraction, seed))
    held = [{holdout.holds_text(text) for text in each} for each in texts]
    assert all(len(each) == 1 for each in held)
    assert {True, False} == set.union(*held)
    usual = sum(map(len, chain(*texts))) / len(texts)
    if max(sizes) == 1:
        candidates = sum(len(text) <= usual for [text] in texts)
        assert sum(each == {True} for each in held) >= min(fraction * len(sizes), candidates)


def test_a_family_that_is_larger_than_the_share_is_trained_on():
    """Thirty copies would make up the whole evaluation, whatever the seed."""
    texts = [*family("large", 30), *(text_of("alone", number) for number in range(170))]
    for seed in range(20):
        said = []
        holdout = chosen(texts, Holdout(0.1, seed), said)
        held = [holdout.holds_text(text) for text in texts]
        assert not any(held[:30])
        assert 20 <= sum(held) <= 25
        assert f"held out {sum(held)} of 200 documents" in said[0]
        assert "30 are in 1 group of similar ones" in said[0]


def test_documents_that_all_resemble_one_another_are_held_out_one_by_one():
    """A share was asked for, so there is an evaluation; what it is worth is said."""
    said, texts = [], family(1, 9)
    holdout = chosen(texts, Holdout(0.5, 0), said)
    assert {True, False} == {holdout.holds_text(text) for text in texts}
    assert "all 9 documents are one group of similar ones: they are held out one by one" in said[0]
    assert chosen(texts, Holdout(0.0, 0), said).fraction == 0
    assert chosen(texts[:1], Holdout(0.5, 0), said[:0]).fraction == 0


def test_a_fold_with_nothing_to_evaluate_or_to_train_on_is_refused():
    """One group of similar documents cannot be divided among folds."""
    for index in range(3):
        with pytest.raises(DataError, match=r"(all|none) of 9 documents, which are 1 group of similar ones"):
            chosen(family(1, 9), Holdout.fold(index, 3, 7), is_fold=True)


def test_a_long_document_does_not_make_up_the_evaluation():
    """One that is larger than the share is trained on, whatever the seed; in a small corpus each is larger."""
    texts = [text_of("short", number) for number in range(100)]
    long = text_of("long", length=20000)
    for seed in range(20):
        holdout = chosen([*texts, long], Holdout(0.02, seed))
        assert not holdout.holds_text(long)
        assert any(holdout.holds_text(text) for text in texts)
    few = [*texts[:9], text_of("long", length=100)]
    of_few = [chosen(few, Holdout(0.02, seed)) for seed in range(20)]
    assert {sum(map(each.holds_text, few)) for each in of_few} == {1}
    assert len({each.chosen for each in of_few}) > 4
    assert not any(each.holds_text(few[-1]) for each in of_few)


def test_the_order_of_documents_changes_nothing():
    """Also where chains of similar documents connect others, and not all pairs are compared."""
    for seed in range(5):
        generator = random.Random(seed)
        sources = [generator.choices(WORDS, k=120) for _ in range(100)]
        texts = []
        for _ in range(300):
            first, second = generator.choices(sources, k=2)
            length = generator.randrange(20, 100)
            texts.append(" ".join([*first[:length], *second[: 120 - length]]))
        expected = chosen(texts, Holdout(0.1, 1234))
        assert expected.chosen
        generator.shuffle(texts)
        assert chosen(texts, Holdout(0.1, 1234)) == expected


def test_each_family_is_in_one_fold():
    """The folds divide the documents, and no family."""
    texts = [family(number, size) for number, size in enumerate([1, 2, 3, 4] * 5)]
    flat = [text for each in texts for text in each]
    folds = [chosen(flat, Holdout.fold(index, 3, 7), is_fold=True) for index in range(3)]
    for each in texts:
        owners = {tuple(fold.holds_text(text) for fold in folds) for text in each}
        assert len(owners) == 1
        assert sum(owners.pop()) == 1


def test_the_choice_is_kept():
    """A later start reads nothing, and another choice of the same data is another one."""
    store = Store()
    source = MemoryDataSource({"unit": [text_of("alone", number) for number in range(50)]})
    first = choose_groups(source, Holdout(0.1, 0), store, print)
    read = source.bytes_read
    assert choose_groups(source, Holdout(0.1, 0), store, print) == first
    assert source.bytes_read == read
    other = choose_groups(source, Holdout(0.1, 1), store, print)
    assert (other.chosen, other.key) != (first.chosen, first.key)


@pytest.fixture(scope="module")
def library():
    source = PythonLibraryDataSource()
    return source, [each.text for unit in source.units() for each in source.read(unit) if each.text]


def test_nothing_that_the_default_run_trains_on_resembles_what_it_holds_out(library):
    """By the exact similarity of all pairs in the Python library; each document by itself leaves copies in training."""
    source, texts = library
    by_groups = choose_groups(source, Holdout(0.05, 1234), Store(), print)
    held = [text for text in texts if by_groups.holds_text(text)]
    assert len(held) >= 0.05 * len(texts)
    assert sum(map(len, held)) >= 0.045 * sum(map(len, texts))
    assert largest_similarity(texts, by_groups) < 0.3
    assert largest_similarity(texts, Holdout(0.05, 1234)) > 0.5


def largest_similarity(texts, holdout):
    """Return the largest Jaccard similarity of a document that is held out and one that is not."""
    hashes, offsets = shingles_of([text.lower() for text in texts], 5)
    owners = np.repeat(np.arange(len(texts)), np.diff(offsets))
    is_held = np.array([holdout.holds_text(text) for text in texts])
    sizes, shared, owners_of = Counter(), Counter(), defaultdict(set)
    is_common = np.isin(hashes, hashes[is_held[owners]])
    for value, owner in zip(hashes[is_common].tolist(), owners[is_common].tolist(), strict=True):
        owners_of[value].add(owner)
    for number, (begin, end) in enumerate(pairwise(offsets.tolist())):
        sizes[number] = len(np.unique(hashes[begin:end]))
    for each in owners_of.values():
        held = [owner for owner in each if is_held[owner]]
        shared.update((one, other) for one in held for other in each if not is_held[other])
    return max(count / (sizes[one] + sizes[other] - count) for (one, other), count in shared.items())
