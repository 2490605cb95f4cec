"""The command ``explain``: reports the state of a run, the cause of a failure and the remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_run
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Reports the state of the run in the words that `runs --help` lists, at which step, which checkpoint is durable and how
often the run was started; after a failure also the cause and what to try, from post-mortem/ in the run folder. It only
reads.

example:
  %(prog)s runs/default
"""


def add_explain(commands: Commands) -> None:
    """Add ``explain`` to ``commands``."""
    add_run(add_command(commands, "explain", "report the state of a run, why it ended and what to try", _HELP, explain))


def explain(options: argparse.Namespace) -> int:
    """Print the state of a run, why it ended and what to try; return the exit code."""
    from holdfast.bootstrap.operations.explain import explain as report
    from holdfast.bootstrap.process.printing import fitting

    print(fitting(report(options.run)))
    return ExitCode.FINISHED
