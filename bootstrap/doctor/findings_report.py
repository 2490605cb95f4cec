"""The findings on this machine as a table for a person, and as plain data for programs; secrets are masked."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.doctor.finding import CheckVerdict
from holdfast.bootstrap.process.text_table import table
from holdfast.configs.secret_masking import mask_text
from holdfast.domain.counting import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.bootstrap.doctor.finding import Finding

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
