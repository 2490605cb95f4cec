"""Documents that share sequences of words are found without a comparison of all pairs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from holdfast.domain.data.near_duplicates import SKETCH, groups_of, sketches_of

WORDS = [f"word{number}" for number in range(5000)]


def text_of(seed, length=400):
    return " ".join(random.Random(seed).choices(WORDS, k=length))


def changed(text, share, seed):
    chance = random.Random(seed)
    return " ".join(chance.choice(WORDS) if chance.random() < share else word for word in text.split())


def groups_in(texts):
    groups = groups_of(sketches_of(texts)).tolist()
    return [sorted(number for number, each in enumerate(groups) if each == group) for group in sorted({*groups})]


def test_copies_with_changes_are_one_group_and_others_are_alone():
    """A twentieth of the words changed leaves similar texts; the order of documents does not matter."""
    texts = [text_of(1), text_of(2), changed(text_of(1), 0.05, 3), text_of(4), changed(text_of(1), 0.05, 5)]
    assert groups_in(texts) == [[0, 2, 4], [1], [3]]
    assert groups_in(texts[::-1]) == [[0, 2, 4], [1], [3]]


def test_capital_letters_and_punctuation_do_not_count():
    """The same words are the same document."""
    assert groups_in([text_of(1), text_of(1).upper().replace(" ", ", ")]) == [[0, 1]]


def test_a_chain_of_similar_documents_is_one_group():
    """The first and the last do not resemble each other, but each one its neighbors."""
    words = text_of(1, 1600).split()
    chain = [" ".join(words[begin : begin + 400]) for begin in range(0, 1200, 100)]
    assert groups_in([chain[0], chain[-1]]) == [[0], [1]]
    assert groups_in(chain) == [[*range(len(chain))]]


@pytest.mark.parametrize("texts", [["a", "a b"], ["", "!"], ["one two", "two one"]])
def test_short_documents_are_compared_as_a_whole(texts):
    """A text of fewer words than a sequence resembles its copies only."""
    assert groups_in([*texts, *texts]) == [[0, 2], [1, 3]]


def test_sketches_are_the_smallest_hashes():
    """Those of a long text with many repetitions are distinct too, and ascend."""
    whole, repeated = sketches_of([text_of(1, 5000), f"{text_of(2, 100)} " * 50])
    assert len(np.unique(whole)) == len(np.unique(repeated)) == SKETCH
    assert (np.diff(whole.astype(float)) >= 0).all()
    assert groups_of(np.zeros((0, SKETCH), np.uint64)).tolist() == []
