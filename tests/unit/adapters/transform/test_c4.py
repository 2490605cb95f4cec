"""Each rule of ``c4`` on both sides of its threshold."""

from __future__ import annotations

import pytest

from holdfast.adapters.transform.c4 import C4Transform
from holdfast.ports.transform import Dropped, Record

OFF = {
    "remove_citations": False,
    "filter_no_terminal_punct": False,
    "min_num_sentences": None,
    "min_words_per_line": None,
    "max_word_length": None,
    "filter_javascript": False,
    "filter_documents": False,
    "filter_policy": False,
}


def left(text, **options):
    """Return the text that is left with ``options`` as the only rules, or the reason for which there is none."""
    [result] = C4Transform(**(OFF | options)).apply([Record(text, {"id": 1}, {"s": 1.0}, ("w",))])
    if isinstance(result, Dropped):
        return result.reason
    assert (result.fields, result.scores, result.warnings) == ({"id": 1}, {"s": 1.0}, ("w",))
    return result.text


@pytest.mark.parametrize(
    ("option", "text", "kept"),
    [
        ({"filter_no_terminal_punct": True}, "a.\nb\nc...\n d? \ne!\nf\"\ng'\nh:", "a.\nd?\ne!\nf\"\ng'"),
        ({"min_words_per_line": 3}, "a b c\na b\n", "a b c"),
        ({"max_word_length": 1000}, "x" * 1000 + " y\n" + "x" * 1001 + " y", "x" * 1000 + " y"),
        ({"filter_javascript": True}, "Turn on JavaScript.\nTurn on Java.", "Turn on Java."),
        ({"filter_policy": True}, "Our Terms of Use.\nWe use cookies.\nWe eat cookies.", "We eat cookies."),
        ({"remove_citations": True}, "a[1] b[] c[edit].\n[citation needed]d[x]", "a b c.\nd[x]"),
        ({}, "  a\r\n\tb \x0b c", "a\nb\nc"),
    ],
)
def test_lines_that_are_left(option, text, kept):
    """Each rule takes away the lines it names, no others, and white space at both ends goes."""
    assert left(text, **option) == kept


@pytest.mark.parametrize(
    ("rule", "option", "kept", "left_out"),
    [
        ("lorem_ipsum", {"filter_documents": True}, "lorem\nipsum", "a\nLorem ipsum"),
        ("curly_bracket", {"filter_documents": True}, "a }", "a\n{"),
        (
            "too_few_sentences",
            {"min_num_sentences": 5},
            "We go. We see. We do.\nWe say. We eat.",
            "We go. We see. We do.\nWe say.",
        ),
    ],
)
def test_documents_that_are_dropped(rule, option, kept, left_out):
    """A document at the threshold is kept, the next one is dropped by the rule."""
    assert left(kept, **option) == kept
    assert left(left_out, **option) == f"c4.{rule}"
    assert left(left_out) == left_out


def test_lines_that_are_dropped_do_not_drop_the_document():
    """A bracket or a filler in a line that another rule takes away does not count."""
    text = "{ no end\nlorem ipsum\nIt is here."
    assert left(text, filter_no_terminal_punct=True, filter_documents=True) == "It is here."


def test_a_text_that_stays_is_the_record_that_was_given():
    """A record whose text does not change is handed on as it is."""
    record = Record("One is here. " * 5 + "It is.")
    assert C4Transform().apply([record])[0] is record
