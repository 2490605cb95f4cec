"""Reports on runs as Markdown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.bootstrap.operations.report_parts import Code, Marked, Shares, Table
from holdfast.bootstrap.operations.report_sections import (
    differences,
    main_figures,
    names_of,
    overview,
    run_sections,
    verdict,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from holdfast.bootstrap.operations.report_facts import Facts
    from holdfast.bootstrap.operations.report_parts import Part, ReportSection

_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&])")


def markdown_report(runs: Sequence[Facts]) -> str:
    """Return the report on ``runs``; their texts are escaped, so that none of them is read as Markdown or HTML."""
    return "\n".join(_lines(runs))


def _lines(runs: Sequence[Facts]) -> Iterator[str]:
    names = names_of(runs)
    yield f"# {escaped(' and '.join(names))}"
    yield ""
    if len(runs) == 1:
        yield f"{escaped(verdict(runs[0]))}."
        yield ""
        yield from _part(Table(("", ""), main_figures(runs[0])))
    yield from _part(overview(runs))
    if len(runs) > 1 and (section := differences(runs)) is not None:
        yield from _section(section, 2)
    for name, facts in zip(names, runs, strict=True):
        if len(runs) > 1:
            yield f"## {escaped(name)}"
            yield ""
        for section in run_sections(facts):
            yield from _section(section, 2 if len(runs) == 1 else 3)


def _section(section: ReportSection, level: int) -> Iterator[str]:
    yield f"{'#' * level} {escaped(section.title)}"
    yield ""
    for part in section.parts:
        yield from _part(part)


def _part(part: Part) -> Iterator[str]:
    match part:
        case str():
            yield escaped(part)
        case Code(text):
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
            yield from (fence, text, fence)
        case Marked(parts):
            yield from _part(Code("".join(f"[[{text}]]" if is_marked else text for text, is_marked in parts)))
            return
        case Shares(parts):
            rows = [(name, amount, f"{share:.1%}") for name, share, amount in parts]
            yield from table_lines(Table(("", "time", "share"), rows, frozenset({1, 2})))
        case Table():
            yield from table_lines(part)
    yield ""


def table_lines(table: Table) -> Iterator[str]:
    """Yield ``table`` as lines of Markdown, its texts escaped."""
    yield f"| {' | '.join(map(escaped, table.header))} |"
    yield f"|{'|'.join('--:' if column in table.numbers else '---' for column in range(len(table.header)))}|"
    yield from (f"| {' | '.join(map(escaped, row))} |" for row in table.rows)


def escaped(text: str) -> str:
    """Return ``text`` on one line, with a backslash before each character that means something in Markdown."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
