"""The command ``completion``: prints the code by which a shell completes commands and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command
from holdfast.bootstrap.cli.shell_completion import SHELLS, script_of
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
The tab key then completes commands, options, settings such as optimizer.lea, the values of a setting behind its =, the
ready configurations behind --config, and run folders. It does so for the program `holdfast`, not for
`python -m application`.

examples, each for the start file of the shell:
  eval "$(holdfast completion bash)"      # ~/.bashrc
  eval "$(holdfast completion zsh)"       # ~/.zshrc, behind compinit
  holdfast completion fish | source       # ~/.config/fish/config.fish
"""


def add_completion(commands: Commands) -> None:
    """Add ``completion`` to ``commands``."""
    summary = "print the code by which a shell completes commands"
    parser = add_command(commands, "completion", summary, _HELP, completion)
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def completion(options: argparse.Namespace) -> int:
    """Print the code for the shell; return the exit code."""
    print(script_of(options.shell))
    return ExitCode.FINISHED
