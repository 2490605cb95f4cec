"""The command line."""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from typing_extensions import override

from holdfast.bootstrap.adapter_choice.launch_environment import check_numbers
from holdfast.bootstrap.cli.arguments import HelpFormat, takes_settings
from holdfast.bootstrap.cli.average_command import add_average
from holdfast.bootstrap.cli.chat_command import add_chat, add_generate
from holdfast.bootstrap.cli.data_command import add_data
from holdfast.bootstrap.cli.drill_command import add_drill, add_verify_resume
from holdfast.bootstrap.cli.evaluate_command import add_evaluate
from holdfast.bootstrap.cli.export_command import add_export
from holdfast.bootstrap.cli.import_trainer_args_command import add_import_trainer_args
from holdfast.bootstrap.cli.launch_command import add_launch
from holdfast.bootstrap.cli.plan_command import add_plan
from holdfast.bootstrap.cli.prepare_command import add_prepare
from holdfast.bootstrap.cli.report_command import add_report
from holdfast.bootstrap.cli.samples_command import add_samples
from holdfast.bootstrap.cli.shell_completion import complete_if_asked
from holdfast.bootstrap.cli.short_commands import (
    add_audit,
    add_completion,
    add_config,
    add_doctor,
    add_erase,
    add_explain,
    add_init,
    add_inspect,
    add_pin,
    add_runs,
)
from holdfast.bootstrap.cli.train_command import add_train
from holdfast.bootstrap.cli.tune_command import add_tune
from holdfast.bootstrap.cli.watch_command import add_watch
from holdfast.bootstrap.process.exit_codes import EXIT_CODES, end_with, guarded
from holdfast.bootstrap.process.program import called_as, in_words_of_caller
from holdfast.configs.option_form import as_settings, hint_for
from holdfast.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_GROUPS = {
    "train": (add_train, add_tune, add_prepare, add_launch),
    "before a run": (add_init, add_import_trainer_args, add_config, add_doctor, add_plan, add_data),
    "watch and read runs": (add_runs, add_watch, add_report, add_explain, add_samples, add_audit),
    "use a model": (add_generate, add_chat, add_evaluate, add_export),
    "checkpoints": (add_inspect, add_average, add_pin, add_erase),
    "prove that runs survive": (add_verify_resume, add_drill),
    "shell": (add_completion,),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code. A user's mistake is one sentence on standard error, never a traceback."""
    _prepare_streams()
    parser, settable = _parser()
    complete_if_asked(parser)
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    if given[:1] and given[0] in settable:
        given = as_settings(given)
    return guarded(lambda: _run(parser, given))


def _run(parser: argparse.ArgumentParser, given: Sequence[str]) -> int:
    options, others = parser.parse_known_args(given)
    is_settable = "settings" in vars(options)
    if strange := [other for other in others if other.startswith("-") or "=" not in other or not is_settable]:
        hint = f"; {hint_for(strange[0])}" if is_settable else ""
        parser.error(f"unrecognized arguments: {' '.join(strange)}{hint}")
    if others:  # settings behind an option, which argparse does not take where another word came before
        options.settings += others
    command: Callable[[argparse.Namespace], int] = options.command
    check_numbers()
    return command(options)


def run() -> NoReturn:
    """Run the command line as a program of its own."""
    end_with(main)


def _prepare_streams() -> None:
    """Prevent that a closed stream, or one that cannot encode every character, ends a command."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if vars(sys)[name] is None:  # in this order, so that no file of the run gets the number of the stream
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115  as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


_FIRST_STEPS = """\
first steps:
  python -m application train                             # trains a small model on text of this machine
  python -m application init own_text                     # writes a file of settings for your own text
  python -m application train --config own_text.yaml
  python -m application train --help                      # each command has examples

"""


class _Version(argparse.Action):
    @override
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        print(f"holdfast {__version__}")
        parser.exit()


def _parser() -> tuple[argparse.ArgumentParser, set[str]]:
    """Return the parser, and the commands that take settings."""
    parser = argparse.ArgumentParser(
        prog=" ".join(called_as()),
        usage="%(prog)s [-h] [--version] COMMAND ...",
        description="Holdfast trains language models without losing the run.",
        epilog=in_words_of_caller(_FIRST_STEPS) + EXIT_CODES,
        formatter_class=HelpFormat,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", help=argparse.SUPPRESS, prog=parser.prog)
    for title, group in _GROUPS.items():
        before = set(commands.choices)
        for add in group:
            add(commands)
        new = {name: command for name, command in commands.choices.items() if name not in before}
        parser.add_argument_group(title, "\n".join(f"{name:21}{_summary(command)}" for name, command in new.items()))
    return parser, {name for name, command in commands.choices.items() if takes_settings(command)}


def _summary(command: argparse.ArgumentParser) -> str:
    text = command.description or ""
    return text[:1].lower() + text[1:].removesuffix(".")
