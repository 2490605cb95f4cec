"""Parts that all HTML files of Holdfast share: the page around their content, tables, and how they are written."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from holdfast.adapters.shared.files.file_operations import explain, replace_file
from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from holdfast.bootstrap.operations.report_sections import Table

_LONG_CELL = 30
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}")


def html_page(
    title: str, body: Iterable[str], head: Sequence[str], styles: Sequence[str], scripts: Sequence[str] = ()
) -> str:
    """Return a page with ``title``, ``body`` and further lines of its ``head``; only the title is escaped.

    ``styles`` and ``scripts`` are the names of static files, which become part of the page. The content security policy
    allows them by their hashes, and nothing from elsewhere.
    """
    rules, programs = [static_file(name) for name in styles], [static_file(name) for name in scripts]
    allowed = f"script-src {' '.join(map(_policy_hash, programs))}; " if programs else ""
    policy = (
        f"default-src 'none'; img-src data:; {allowed}style-src {' '.join(map(_policy_hash, rules))}; "
        "base-uri 'none'; form-action 'none'"
    )
    lines = [
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        *head,
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<link rel="icon" href="data:,">',
        f"<title>{escape(title)}</title>",
        *(f"<style>{rule}</style>" for rule in rules),
        "</head>",
        "<body>",
        *body,
        *(f"<script>{program}</script>" for program in programs),
        "</body>",
    ]
    return "\n".join(["<!doctype html>", '<html lang="en">', *lines, "</html>", ""])


def static_file(name: str) -> str:
    """Return the text of the static file ``name``."""
    return files("holdfast.bootstrap.web").joinpath("static", name).read_text(encoding="utf-8")


def _policy_hash(text: str) -> str:
    """Return the source by which a content security policy allows the script or the style ``text``."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def table_html(table: Table) -> str:
    """Return ``table`` as HTML, its texts escaped."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{_css(cell, is_number=column in table.numbers)}>{_cell_html(cell)}</{tag}>"
            for column, cell in enumerate(row)
        )

    levels = [f' class="level-{escape(level)}"' for level in table.levels] or [""] * len(table.rows)
    rows = "".join(f"<tr{level}>{cells('td', row)}</tr>" for level, row in zip(levels, table.rows, strict=True))
    head = f"<thead><tr>{cells('th', table.header)}</tr></thead>" if any(table.header) else ""
    kind = ' class="levels"' if table.levels else ""
    return f'<div class="wide"><table{kind}>{head}<tbody>{rows}</tbody></table></div>'


def _cell_html(cell: str) -> str:
    """Return a cell, escaped; a time is broken into lines only between its date and the time of day."""
    return f'<span class="date">{cell[:10]}</span>{cell[10:]}' if _MOMENT.fullmatch(cell) else escape(cell)


def _css(cell: str, *, is_number: bool) -> str:
    kind = "number" if is_number else "long" if len(cell) > _LONG_CELL else ""
    return f' class="{kind}"' if kind else ""


def write_text(path: Path, text: str, *, is_shared: bool = True) -> None:
    """Write ``text`` to ``path`` atomically; raises ``StateError`` if that is not possible.

    ``is_shared`` is as in ``replace_file``.
    """
    try:
        replace_file(path, text.encode("utf-8", "replace"), is_shared=is_shared)
    except OSError as error:
        msg = f"{path} cannot be written, {explain(error)}"
        raise StateError(msg) from error
