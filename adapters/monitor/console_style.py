"""The meaning of the console's lines, and its colour."""

from __future__ import annotations

import re

_PROBLEM = re.compile(
    r"\b(NOT|DROPPED|ROLLED BACK|damaged|failed|cannot|does not fit|differ|waited|behind"
    r"|was ended by|ended with code|not started again|did not take|no report was written)\b"
)
_SAVE = re.compile(r"\bcheckpoint-\d+ saved\b|· archived in |· moved from ")
_EVALUATION = re.compile(r"^step \d+ · evaluation ")


def is_problem(line: str) -> bool:
    """Return whether ``line`` reports a problem."""
    return _PROBLEM.search(line) is not None and _SAVE.search(line) is None


def style_of(line: str) -> str:
    """Return rich's style of ``line``: problems are red, evaluations bold, saves green; other lines have no style."""
    if _EVALUATION.match(line):
        return "bold cyan"
    if _SAVE.search(line):
        return "green"
    return "red" if is_problem(line) else ""
