"""Counts the commands in the blocks of the documentation: those that a test runs, and those that are excused, and why.

``python -m tests.support.command_coverage`` prints a table with a line for each page.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from tests.support.printed_commands import Printed, printed

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHECKED = "test_documented_commands.py checks"
_OF_A_KIND = {
    r"pip install ": f"installs packages: {_CHECKED} that its extras exist",
    r"make ": f"runs a target of make: {_CHECKED} that there is one",
    r"(srun|torchrun|accelerate) |python -m holdfast\.torchrun": "starts processes on several machines: "
    f"test_slurm_job.py, test_killed_ranks.py and test_two_nodes.py do so, and {_CHECKED} the options",
}
"""Reasons for all commands that begin with a pattern."""


class Coverage(NamedTuple):
    """A command of a block, and what becomes of it: ``by`` is the test that runs it, ``excuse`` why none does."""

    command: Printed
    by: str | None
    excuse: str | None


def coverage() -> Iterator[Coverage]:
    """Yield each command in a block of the documentation, in order; those without both are neither run nor excused."""
    from tests.end_to_end.test_documented_commands import OTHERS
    from tests.end_to_end.test_documented_pages import EXCEPTIONS, FOLLOWED, OF_THEIR_OWN, line_of

    followed = {line for lines in FOLLOWED.values() for line in lines}
    for each in printed():
        line = line_of(each)
        if not each.is_block:
            continue
        if each.page in OF_THEIR_OWN and line not in EXCEPTIONS and not line.startswith("pip install "):
            yield Coverage(each, OF_THEIR_OWN[each.page], None)
        elif line in followed:
            yield Coverage(each, "test_documented_pages.py", None)
        else:
            yield Coverage(each, None, EXCEPTIONS.get(line) or OTHERS.get(each.text) or _excuse(each))


def _excuse(each: Printed) -> str | None:
    if (found := next((words for start, words in _OF_A_KIND.items() if re.match(start, each.text)), None)) is not None:
        return found
    return None if each.is_complete else f"a word stands for another: {_CHECKED} its arguments"


def summary() -> str:
    """Return a sentence with the numbers of all commands."""
    found = list(coverage())
    num_run, num_excused = sum(each.by is not None for each in found), sum(each.excuse is not None for each in found)
    pages = len({each.command.page for each in found})
    text = f"{len(found)} commands in blocks of {pages} pages: {num_run} run by a test, {num_excused} excused, "
    return f"{text}{len(found) - num_run - num_excused} neither"


def table() -> str:
    """Return the numbers of each page, the excuses with the commands that have them, and the sum."""
    found = list(coverage())
    counts = Counter((each.command.page, each.by is not None) for each in found)
    lines = [f"{'page':32}{'run':>4}{'excused':>9}"]
    pages = dict.fromkeys(each.command.page for each in found)
    lines += [f"{page:32}{counts[page, True]:4}{counts[page, False]:9}" for page in pages]
    lines += ["", "excused:"]
    for each in found:
        if each.by is None:
            lines.append(f"{each.command.page}:{each.command.line}  {each.command.text[:70]}\n    {each.excuse}")
    return "\n".join([*lines, "", summary()])


if __name__ == "__main__":
    sys.stdout.write(f"{table()}\n")
