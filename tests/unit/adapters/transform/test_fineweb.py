"""Each rule of ``fineweb`` on both sides of its threshold."""

from __future__ import annotations

import pytest

from holdfast.adapters.transform.fineweb import FinewebTransform
from holdfast.ports.transform import Dropped, Record

OFF = {"line_punct_thr": None, "short_line_thr": None, "char_duplicates_ratio": None, "new_line_ratio": None}


def reason(text, **options):
    """Return the reason for which ``text`` is dropped with ``options`` as the only rules, or None."""
    [result] = FinewebTransform(**(OFF | options)).apply([Record(text)])
    return result.reason if isinstance(result, Dropped) else None


@pytest.mark.parametrize(
    ("rule", "option", "kept", "left_out"),
    [
        ("too_few_ended_lines", {"line_punct_thr": 0.12}, "a.\n" * 3 + "a\n" * 22, "a\u3002\n" * 3 + "a\n" * 23),
        ("too_many_short_lines", {"short_line_thr": 0.67}, "a\n" * 67 + "b" * 31 + ("\n" + "b" * 31) * 32, "b" * 30),
        ("repeated_lines", {"char_duplicates_ratio": 0.01}, "ab\nab\n" + "c" * 196, "ab\nab\n" + "c" * 195),
        ("too_many_lines", {"new_line_ratio": 0.3}, "a\n" * 3 + "b " * 7, "a, b.\n" * 2 + "b\n" * 2 + "c"),
    ],
)
def test_each_rule_on_both_sides(rule, option, kept, left_out):
    """A value at the threshold is kept, the next one is dropped by the rule."""
    assert reason(kept, **option) is None
    assert reason(left_out, **option) == f"fineweb.{rule}"
    assert reason(left_out) is None


def test_line_ends_are_counted_a_word_not_a_piece():
    """Three line ends among 13 words in seven pieces are no more than 0.3 a word."""
    assert reason("aa,bb cc! dd!\nee! ff!\ngg\nhh", new_line_ratio=0.3) is None


@pytest.mark.parametrize("text", ["", " \n\t\n"])
def test_a_text_of_white_space_is_dropped(text):
    """There is no share of no lines: the text is dropped, whatever the options."""
    assert reason(text) == "fineweb.empty"


def test_texts_without_any_ended_line_may_be_kept():
    """With line_punct_exclude_zero a share of 0 is kept, a share between it and the threshold is not."""
    options = {"line_punct_thr": 0.12, "line_punct_exclude_zero": True}
    assert reason("a\n" * 20, **options) is None
    assert reason("a.\n" + "a\n" * 20, **options) == "fineweb.too_few_ended_lines"


def test_ends_of_lines_may_be_several_characters():
    """Each text of stop_chars ends a line."""
    assert reason("a ;)", line_punct_thr=1, stop_chars=[";)", "."]) is None
    assert reason("a )", line_punct_thr=1, stop_chars=[";)", "."]) == "fineweb.too_few_ended_lines"
