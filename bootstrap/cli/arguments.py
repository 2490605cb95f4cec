"""What the commands of the command line are given."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.process.program import in_words_of_caller

if TYPE_CHECKING:
    from collections.abc import Callable

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  argparse names it nowhere else


def add_command(
    commands: Commands, name: str, summary: str, text: str, *, module: str = "holdfast.bootstrap.cli.run_commands"
) -> argparse.ArgumentParser:
    """Add the command ``name``, done by the function of that name in ``module``; return its parser."""

    def call(options: argparse.Namespace) -> int:
        implementation: Callable[[argparse.Namespace], int]
        implementation = getattr(import_module(module), name.replace("-", "_"))
        return implementation(options)

    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=in_words_of_caller(text),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(command=call)
    return parser


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Let a command take settings."""
    parser.set_defaults(takes_settings=True)
    parser.add_argument(
        "--config",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a YAML file, or one that comes with this package (config --list); repeat it, later ones win",
    )
    parser.add_argument("settings", nargs="*", metavar="key.path=value", help="a setting, such as run.seed=7")


def takes_settings(parser: argparse.ArgumentParser) -> bool:
    """Return whether ``add_settings`` was called for a command."""
    return parser.get_default("takes_settings") is True


def add_run(parser: argparse.ArgumentParser) -> None:
    """Let a command take a run folder."""
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder, such as runs/default")


def add_checkpoint(parser: argparse.ArgumentParser, name: str = "run") -> None:
    """Let a command take a run folder or the folder of one checkpoint, under ``name``, and a choice among a run's."""
    text = "a run folder, such as runs/default, or the folder of one checkpoint"
    parser.add_argument(name, type=Path, metavar="RUN", help=text)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--step", type=whole(1, 10**18 - 1), metavar="N", help="the checkpoint of this step, not the newest"
    )
    choice.add_argument("--best", action="store_true", help="the checkpoint with the lowest evaluation loss")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Let a person say again what a run folder asks to be trusted."""
    text = "run code that the run's settings name, as model.trust_remote_code=PATH or optimizer.kind=NAME; repeat it"
    parser.add_argument("--trust", action="append", default=[], metavar="KEY=VALUE", help=text)
    text = "a YAML file of yours: what it trusts is trusted here too"
    parser.add_argument("--config", type=Path, action="append", default=[], metavar="FILE", help=text)


def whole(smallest: int, largest: int = 2**31 - 1) -> Callable[[str], int]:
    """Return a parser of whole numbers in these bounds."""

    def parse(text: str) -> int:
        number = int(text)
        if not smallest <= number <= largest:
            raise ValueError
        return number

    parse.__name__ = f"whole number from {smallest} to {largest}"  # argparse shows it
    return parse
