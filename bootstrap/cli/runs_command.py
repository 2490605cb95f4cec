"""The command ``runs``: lists the training runs below a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command
from holdfast.bootstrap.process.exit_codes import ExitCode
from holdfast.domain.home_folder import expanded

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Reads only, and no checkpoint, so it is safe and fast while runs train. Columns that do not fit the terminal are left
out; --json has all of them. Exit code 0, or 4 if there is no run.

examples:
  %(prog)s
  %(prog)s /scratch/experiments --json

state of a run:
  training         a process trains it now
  starting         a process prepares its data or its model now
  suspended        this process is suspended, for example by Ctrl-Z
  no sign of life  a process holds it, but no heartbeat has come from it for 90 seconds
  finished         its budget is spent or its data have ended
  stopped early    early stopping ended it
  stopped          a signal, a file or the host program asked it to stop; the same command continues it
  failed           an error ended it
  hung             it made no progress, and the watchdog ended it
  crashed          its process ended without a message, for example by SIGKILL or a power cut
"""


def add_runs(commands: Commands) -> None:
    """Add ``runs`` to ``commands``."""
    parser = add_command(commands, "runs", "list the training runs below a folder", _HELP, runs)
    text = "the folder that holds the run folders; without it runs/"
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def runs(options: argparse.Namespace) -> int:
    """Print the runs below a folder; return the exit code."""
    from holdfast.bootstrap.operations.list_runs import list_runs
    from holdfast.bootstrap.process.text_table import width_of_output
    from holdfast.configs.sections.run import RunSettings

    folder = RunSettings().directory.parent if options.folder is None else expanded(options.folder)
    print(list_runs(folder, as_json=options.json, width=width_of_output()))
    return ExitCode.FINISHED
