"""The report of ``doctor``: its lines, its worst verdict, and the secrets that it does not show."""

import pytest

from holdfast.bootstrap.doctor.finding import CheckVerdict, as_data, as_lines, bad, doubtful, good, worst_of

URL = "https://user:hunter2@server/path?token=hunter2"


@pytest.mark.parametrize("place", ["name", "detail", "remedy"])
def test_no_part_of_a_finding_shows_a_secret(place):
    """User, password and token of a URL are masked in each column, in the table and in the JSON."""
    finding = bad(**{"name": "a", "detail": "b", "remedy": "c", place: URL})
    shown = f"{[*as_lines([finding])]}{as_data([finding])}"
    assert "server/path" in shown
    assert "hunter2" not in shown


def test_the_last_line_counts_the_problems():
    """Errors and warnings are counted, and errors said to keep a run from working."""
    fine, slow, broken = good("a", "b"), doubtful("c", "d", "e"), bad("f", "g", "h")
    assert [*as_lines([fine, fine])][-1] == "2 checks, no problem"
    assert [*as_lines([fine, slow])][-1] == "0 errors and 1 warning"
    assert [*as_lines([broken, slow])][-1] == "1 error and 1 warning: a run with these settings would not work"


def test_the_worst_verdict_counts():
    """An error outweighs a warning, and a warning what is ok."""
    fine, slow, broken = good("a", "b"), doubtful("c", "d", "e"), bad("f", "g", "h")
    assert worst_of([]) is worst_of([fine]) is CheckVerdict.OK
    assert worst_of([fine, slow]) is CheckVerdict.WARNING
    assert worst_of([broken, slow, fine]) is CheckVerdict.ERROR


def test_a_narrow_terminal_continues_lines_in_their_column():
    """No line is wider than the terminal, and what does not fit begins where the results begin."""
    lines = [*as_lines([bad("run folder", "word " * 30, "remedy " * 10)], 72)]
    assert max(map(len, lines[:-1])) <= 72
    assert all(line.startswith(" " * 21) and line[21] != " " for line in lines[2:-1])
    assert " ".join(" ".join(lines[:-1]).split()).count("word") == 30
