"""The result of a check of this machine, and the check that gives it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.process.text_table import table
from holdfast.configs.secret_masking import mask_text
from holdfast.domain.errors import TrainingError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


class CheckVerdict(StrEnum):
    """The meaning of a finding: an error keeps a run from working, a warning may slow it down or lose a copy."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report: the thing that was checked, its verdict, what was found and, if not ok, what to do."""

    name: str
    verdict: CheckVerdict
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """A check that yields its findings one after another, and may take ``seconds``."""

    name: str
    look: Callable[[], Iterable[Finding]]
    seconds: float = 10.0


def good(name: str, detail: str) -> Finding:
    """Return the finding that ``name`` is in order."""
    return Finding(name, CheckVerdict.OK, detail)


def doubtful(name: str, detail: str, remedy: str) -> Finding:
    """Return a finding that lets a run work, but not well."""
    return Finding(name, CheckVerdict.WARNING, detail, remedy)


def bad(name: str, detail: str, remedy: str) -> Finding:
    """Return a finding that keeps a run from working."""
    return Finding(name, CheckVerdict.ERROR, detail, remedy)


def failed(name: str, error: BaseException) -> Finding:
    """Return the finding that the check ``name`` raised ``error``; Holdfast's own errors end with their remedy."""
    if isinstance(error, TrainingError):
        detail, _, remedy = " ".join(str(error).split()).rpartition(": ")
        return bad(name, detail or remedy, remedy if detail else "correct the setting")
    detail = f"the check failed with {type(error).__name__}: {' '.join(str(error).split())}"
    return bad(name, detail, "remove the cause, and run the command again")


_GAP = "  "
_NARROWEST = 30
_ORDER = (CheckVerdict.ERROR, CheckVerdict.WARNING, CheckVerdict.OK)


def worst_of(findings: Sequence[Finding]) -> CheckVerdict:
    """Return the worst verdict among ``findings``."""
    verdicts = {finding.verdict for finding in findings}
    return next((verdict for verdict in _ORDER if verdict in verdicts), CheckVerdict.OK)


def as_lines(findings: Sequence[Finding], width: int | None = None) -> Iterator[str]:
    """Yield a line for each finding, in the order of the checks, and a last line that counts the problems.

    With a ``width`` in characters a longer line is continued in its last column.
    """
    rows = [(str(finding.verdict), _shown(finding.name), _sentence(finding)) for finding in findings]
    rows = [("verdict", "check", "result"), *rows]
    left = sum(max(len(row[column]) + len(_GAP) for row in rows) for column in (0, 1))
    yield from table("<<<", rows if width is None else _within(max(width - left, _NARROWEST), rows))
    errors = sum(finding.verdict is CheckVerdict.ERROR for finding in findings)
    warnings = sum(finding.verdict is CheckVerdict.WARNING for finding in findings)
    if not errors and not warnings:
        yield f"{counted(len(findings), 'check')}, no problem"
    else:
        keeps = ": a run with these settings would not work" if errors else ""
        yield f"{counted(errors, 'error')} and {counted(warnings, 'warning')}{keeps}"


def as_data(findings: Sequence[Finding]) -> Mapping[str, Any]:
    """Return the findings as plain data, with the worst verdict among them."""
    entries = [
        {
            "name": _shown(finding.name),
            "verdict": str(finding.verdict),
            "detail": _shown(finding.detail),
            "remedy": _shown(finding.remedy),
        }
        for finding in findings
    ]
    return {"verdict": str(worst_of(findings)), "findings": entries}


def _within(width: int, rows: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Return ``rows`` with further ones for what does not fit into ``width`` characters of the last column."""
    return [
        (verdict, name, part) if number == 0 else ("", "", part)
        for verdict, name, sentence in rows
        for number, part in enumerate(textwrap.wrap(sentence, width, break_on_hyphens=False) or [""])
    ]


def _sentence(finding: Finding) -> str:
    return _shown(f"{finding.detail}: {finding.remedy}" if finding.remedy else finding.detail)


def _shown(text: str) -> str:
    return " ".join(mask_text(text).split())
