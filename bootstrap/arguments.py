"""What the commands of the command line are given."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  argparse names it nowhere else


def add_command(commands: Commands, name: str, summary: str, text: str) -> argparse.ArgumentParser:
    """Add the command ``name``, done by the function of that name in ``bootstrap.commands``; return its parser."""

    def call(options: argparse.Namespace) -> int:
        from bootstrap import commands as implementations

        implementation: Callable[[argparse.Namespace], int] = getattr(implementations, name.replace("-", "_"))
        return implementation(options)

    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=call)
    return parser


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Let a command take settings."""
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a YAML file; repeat it, later ones win",
    )
    parser.add_argument("settings", nargs="*", metavar="key.path=value", help="a setting, such as run.seed=7")


def add_run(parser: argparse.ArgumentParser) -> None:
    """Let a command take a run folder."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, such as runs/default")


def whole(smallest: int, largest: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a parser of whole numbers in these bounds."""

    def parse(text: str) -> int:
        number = int(text)
        if not smallest <= number <= largest:
            raise ValueError
        return number

    parse.__name__ = f"whole number from {smallest} to {largest}"  # argparse shows it
    return parse
