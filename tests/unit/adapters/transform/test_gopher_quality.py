"""Each rule of ``gopher_quality`` on both sides of its threshold."""

from __future__ import annotations

import pytest

from holdfast.adapters.transform.gopher_quality import GopherQualityTransform
from holdfast.ports.transform import Dropped, Record

OFF = {
    "doc_words": [None, None],
    "avg_word_length": [None, None],
    "max_symbol_word_ratio": None,
    "max_bullet_lines_ratio": None,
    "max_ellipsis_lines_ratio": None,
    "min_alpha_words_ratio": None,
    "min_stop_words": None,
}


def reason(text, **options):
    """Return the reason for which ``text`` is dropped with ``options`` as the only rules, or None."""
    [result] = GopherQualityTransform(**(OFF | options)).apply([Record(text)])
    return result.reason if isinstance(result, Dropped) else None


@pytest.mark.parametrize(
    ("rule", "option", "kept", "left_out"),
    [
        ("too_short", {"doc_words": [50, None]}, "word , " * 50, "word , " * 49),
        ("too_long", {"doc_words": [None, 100_000]}, "a " * 100_000, "a " * 100_001),
        ("short_words", {"avg_word_length": [3, None]}, "ab abcd .", "ab abc ."),
        ("long_words", {"avg_word_length": [None, 10]}, "abcdefghi abcdefghijk", "abcdefghij abcdefghijk"),
        ("too_many_hashes", {"max_symbol_word_ratio": 0.1}, "a " * 9 + "#", "a " * 8 + "#"),
        ("too_many_ellipses", {"max_symbol_word_ratio": 0.1}, "a " * 9 + "\u2026", "a " * 8 + "..."),
        ("too_many_bullets", {"max_bullet_lines_ratio": 0.9}, " - a\n" * 9 + "b", "\u2022 a\n" * 10 + "b"),
        (
            "too_many_ellipsis_lines",
            {"max_ellipsis_lines_ratio": 0.3},
            "a...\n" * 3 + "a\n" * 7,
            "a\u2026 \n" * 4 + "a\n" * 6,
        ),
        ("too_few_alphabetic_words", {"min_alpha_words_ratio": 0.8}, "a a a4 \u0416 5", "a a a 4 5"),
        ("too_few_stop_words", {"min_stop_words": 2}, "a the cat " * 99 + "with", "the the cat The"),
    ],
)
def test_each_rule_on_both_sides(rule, option, kept, left_out):
    """A value at the threshold is kept, the next one is dropped by the rule."""
    assert reason(kept, **option) is None
    assert reason(left_out, **option) == f"gopher_quality.{rule}"
    assert reason(left_out) is None


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_text_without_words_is_dropped(text):
    """There is no share of no words: the text is dropped, whatever the options."""
    assert reason(text) == "gopher_quality.empty"


def test_the_sentence_has_value_and_threshold():
    """A person reads what was measured, and which option says how much is enough."""
    [drop] = GopherQualityTransform().apply([Record("Two words.")])
    assert drop.detail == "The number of words that are not punctuation is 2, and doc_words is 50."


def test_stop_words_are_words_as_they_are_split():
    """A contraction as a stop word is never found, as its parts are words; a part of one is."""
    assert reason("I don't", stop_words=["don't"], min_stop_words=1) == "gopher_quality.too_few_stop_words"
    assert reason("I don't", stop_words=["n't"], min_stop_words=1) is None
