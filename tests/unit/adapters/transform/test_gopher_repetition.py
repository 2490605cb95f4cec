"""Each rule of ``gopher_repetition`` on both sides of its threshold."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.transform.gopher_repetition import GopherRepetitionTransform, Words, duplicate_bounds, top_bounds
from holdfast.ports.transform import Dropped, Record

OFF = {
    "dup_line_frac": None,
    "dup_para_frac": None,
    "dup_line_char_frac": None,
    "dup_para_char_frac": None,
    "top_n_grams": None,
    "dup_n_grams": None,
}


def reason(text, **options):
    """Return the reason for which ``text`` is dropped with ``options`` as the only rules, or None."""
    [result] = GopherRepetitionTransform(**(OFF | options)).apply([Record(text)])
    return result.reason if isinstance(result, Dropped) else None


def plain_top(words, n):
    """Return what datatrove's ``find_top_duplicate`` does."""
    runs = [" ".join(words[first : first + n]) for first in range(len(words) - n + 1)]
    return max(([len(run) * number for run, number in Counter(runs).most_common(1)]), default=0)


def plain_duplicate(words, n):
    """Return what datatrove's ``find_all_duplicate`` does."""
    seen, found, first = set(), 0, 0
    while first < len(words) - n + 1:
        run = "".join(words[first : first + n])
        found += len(run) if run in seen else 0
        first += n if run in seen else 1
        seen.add(run)
    return found


@pytest.mark.parametrize(
    ("rule", "option", "kept", "left_out"),
    [
        ("duplicate_lines", {"dup_line_frac": 0.3}, "abcdefg" + "aaa", "abcdef" + "aaaa"),
        ("duplicate_line_characters", {"dup_line_char_frac": 0.2}, "a\na\nx", "aa\naa\nx"),
        ("duplicate_paragraphs", {"dup_para_frac": 0.3}, "abcdefg" + "aaa", "abcdef" + "aaaa"),
        ("duplicate_paragraph_characters", {"dup_para_char_frac": 0.2}, "a\n\na\nx", "aa\n\naa\n\nx"),
        ("top_2_gram", {"top_n_grams": {2: 0.2}}, "ab cd " * 2 + "x" * 38, "ab cd " * 2 + "x" * 37),
        ("duplicate_2_grams", {"dup_n_grams": {2: 0.2}}, "a b a b " + "x" * 2, "a b a b " + "x"),
    ],
)
def test_each_rule_on_both_sides(rule, option, kept, left_out):
    """A value at the threshold is kept, the next one is dropped by the rule."""
    if rule in {"duplicate_lines", "duplicate_paragraphs"}:
        between = "\n" if rule == "duplicate_lines" else "\n\n\n"
        kept, left_out = between.join(kept), between.join(left_out)
    assert reason(kept, **option) is None
    assert reason(left_out, **option) == f"gopher_repetition.{rule}"
    assert reason(left_out) is None


def test_an_empty_text_is_dropped():
    """There is no share of no characters: the text is dropped, whatever the options."""
    assert reason("") == "gopher_repetition.empty"


def test_white_space_has_no_runs_of_words():
    """A text without words repeats none."""
    assert reason(" \t ", top_n_grams={1: 0}, dup_n_grams={1: 0}) is None


@settings(max_examples=50)
@given(st.lists(st.lists(st.sampled_from(["a", "b", "ab", "ba", "c" * 9]), max_size=30), max_size=4), st.integers(1, 5))
def test_bounds_are_at_least_the_counts(documents, n):
    """The bounds of documents together are at least the exact counts of each."""
    together = Words(documents)
    for words, top, duplicate in zip(documents, top_bounds(together, n), duplicate_bounds(together, n), strict=True):
        assert top >= plain_top(words, n)
        assert duplicate >= plain_duplicate(words, n)


def test_bounds_of_natural_text_are_close():
    """The bounds show that texts of random words do not repeat."""
    chance = random.Random(0)
    documents = [[str(chance.randrange(10**6)) for _ in range(200)] for _ in range(20)]
    together = Words(documents)
    assert max(duplicate_bounds(together, 5)) == 0
    assert max(top_bounds(together, 2)) < 100


@settings(max_examples=40)
@given(st.lists(st.sampled_from(["a", "b", "cc", "d."]), min_size=1, max_size=40), st.integers(1, 6))
def test_verdicts_are_those_of_plain_counts(pieces, n):
    """A document is dropped exactly if the share that a plain count gives is above the threshold."""
    text = " ".join(pieces)
    words = text.split()  # "d." is one word
    for threshold in (0.1, 0.3, 0.6):
        is_dropped = reason(text, top_n_grams={n: threshold}) is not None
        assert is_dropped == (plain_top(words, n) / len(text) > threshold)
        is_dropped = reason(text, dup_n_grams={n: threshold}) is not None
        assert is_dropped == (plain_duplicate(words, n) / len(text) > threshold)


def test_the_first_of_equally_frequent_runs_counts():
    """Of runs that are equally frequent the first is the most frequent one, although another is longer."""
    assert reason("a b " + "c" * 50 + " d", top_n_grams={2: 0.2}) is None
    assert reason("c" * 50 + " d a b", top_n_grams={2: 0.2}) == "gopher_repetition.top_2_gram"
