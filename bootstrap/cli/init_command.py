"""The command ``init``: writes a commented file of settings from one of the ready configurations."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command
from holdfast.bootstrap.process.exit_codes import ExitCode
from holdfast.bootstrap.process.program import called_as, in_words_of_caller

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Without a name, the ready configurations are listed. The file is yours to change: each setting that matters has a
comment, and editors that know JSON Schema complete and check the settings. A file that exists is never overwritten.

examples:
  python -m application init
  python -m application init own_text
  python -m application init chat_lora --output my-chats.yaml
"""


def add_init(commands: Commands) -> None:
    """Add ``init`` to ``commands``."""
    parser = add_command(commands, "init", "write a commented file of settings to begin with", _HELP, init)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a name from the list")
    text = "the new file; default: NAME.yaml in the current folder"
    parser.add_argument("--output", type=Path, metavar="FILE", help=text)


def init(options: argparse.Namespace) -> int:
    """Write the file, or list the ready configurations; return the exit code."""
    from holdfast.configs.ready_configurations import list_ready, write_copy

    if options.name is None:
        print(list_ready())
        return ExitCode.FINISHED
    path = write_copy(options.name, options.output, " ".join(called_as()))
    command = in_words_of_caller(f"python -m application train --config {shlex.quote(str(path))}")
    print(f"wrote {path}: set the paths in it, then run\n  {command}")
    return ExitCode.FINISHED
