"""The job files that the documentation shows, each behind the command that prints it.

``python -m tests.support.documented_job_files`` writes them anew.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tempfile
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from holdfast.bootstrap.cli.main import main
from tests.support.command_line import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGES = ("docs/distributed.md", "docs/preparing.md", "docs/two-nodes.md")
_SHOWN = re.compile(
    r"^```\nholdfast (?P<command>launch (?:.*\\\n)*.*)\n```\n\n"
    r"```(?:bash|yaml)\n(?P<file>(?:(?!```).*\n)*)```$",
    re.MULTILINE,
)


class Shown(NamedTuple):
    """A command of a page, without ``holdfast``, and the file that the page shows for it."""

    page: str
    command: str
    file: str


def shown() -> Iterator[Shown]:
    """Yield each job file of each page."""
    for page in PAGES:
        for found in _SHOWN.finditer((ROOT / page).read_text(encoding="utf-8")):
            yield Shown(page, found["command"], found["file"])


def printed_by(command: str) -> str:
    """Return what ``command`` prints, called as ``python -m application`` in an empty folder."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(stack.enter_context(tempfile.TemporaryDirectory())))
        stack.enter_context(patch.object(sys, "argv", [str(ROOT / "application/__main__.py")]))
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(errors))
        code = main(shlex.split(command.replace("\\\n", " ")))
    assert code == 0, errors.getvalue()
    return output.getvalue()


def _write() -> None:
    for page in PAGES:
        path = ROOT / page
        text = path.read_text(encoding="utf-8")
        for found in reversed([*_SHOWN.finditer(text)]):
            begin, end = found.span("file")
            text = text[:begin] + printed_by(found["command"]) + text[end:]
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write()
