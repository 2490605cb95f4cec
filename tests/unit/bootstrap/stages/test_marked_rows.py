"""Rows are lines for a person, with marks around what is trained on."""

from __future__ import annotations

from holdfast.bootstrap.stages.prepare.supervision_proof import row_lines

ROW = [[("a\nb", False), ("c\nd", True)], [("e", False)]]


def test_outside_of_a_terminal_brackets_mark_what_is_trained_on():
    """Documents are divided by a line, and a text of several lines has one pair of brackets."""
    lines = list(row_lines([ROW], is_colored=False))
    assert lines[1:] == ["a", "b[[c", "d]]", "-" * 8, "e"]


def test_a_terminal_shows_it_in_color_line_by_line():
    """Each line is colored by itself, so that nothing after it is."""
    lines = list(row_lines([ROW], is_colored=True))
    assert lines[2] == "\x1b[2mb\x1b[0m\x1b[32mc\x1b[0m"
    assert lines[3] == "\x1b[32md\x1b[0m"


def test_data_cannot_speak_to_the_terminal():
    """A control character of a text is shown by its number."""
    assert list(row_lines([[[("\x1b[31mred\x07", True)]]], is_colored=False))[1] == r"[[\x1b[31mred\x07]]"


def test_a_long_row_is_cut_where_it_was_asked():
    """The rest of a row is not shown, and a line says so."""
    lines = list(row_lines([ROW, ROW], is_colored=False, longest=5))
    assert lines[1:4] == ["a", "b[[c", "]]"]
    assert "not shown" in lines[4]
    assert len(lines) == 10
