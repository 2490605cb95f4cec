"""The command ``import-trainer-args``: prints the settings that TrainingArguments of transformers become."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from holdfast.bootstrap.cli.arguments import Commands
    from holdfast.configs.trainer_arguments import Imported

_HELP = """\
Reads a file of TrainingArguments, as TrainingArguments.to_json_string() gives it, or as YAML. Prints the settings for
--config. Comments name each argument that has another value than Trainer's and no setting, those that change the result
first. What changes the result and is not in the file is as Trainer has it. The data and the number of processes are not
among the arguments: set data.path, and multiply optimizer.batch_size by the number of processes.

example:
  %(prog)s arguments.json --steps 12000 > trainer.yaml
"""


def add_import_trainer_args(commands: Commands) -> None:
    """Add ``import-trainer-args`` to ``commands``."""
    summary = "print the settings that TrainingArguments of transformers become"
    parser = add_command(commands, "import-trainer-args", summary, _HELP, import_trainer_args)
    parser.add_argument("file", type=Path, help="TrainingArguments as JSON or YAML")
    steps = "steps of the whole run, in place of num_train_epochs: max_steps in trainer_state.json of a checkpoint"
    parser.add_argument("--steps", type=int, metavar="N", help=steps)


def import_trainer_args(options: argparse.Namespace) -> int:
    """Print the settings as YAML; return the exit code."""
    import yaml

    from holdfast.configs.strict_yaml import StrictYamlError, read_yaml
    from holdfast.configs.trainer_arguments import import_arguments
    from holdfast.domain.errors import ConfigurationError

    try:
        given = read_yaml(options.file.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, StrictYamlError) as error:
        reason = " ".join(str(error).split())
        message = f"{options.file} cannot be read as TrainingArguments ({reason}): give JSON or YAML"
        raise ConfigurationError(message) from error
    if not isinstance(given, dict):
        message = f"{options.file} has no arguments by name: give the JSON of TrainingArguments.to_json_string()"
        raise ConfigurationError(message)
    if options.steps is not None and options.steps < 1:
        message = f"--steps takes a whole number from 1, and this is {options.steps}"
        raise ConfigurationError(message)
    try:
        imported = import_arguments(given, num_steps=options.steps)
    except ConfigurationError as error:
        message = f"{options.file}: {error}"
        raise ConfigurationError(message) from error
    if odd := [*imported.differing, *imported.unknown]:
        message = f"{', '.join(map(_on_one_line, odd))}: without a setting, and results may differ from Trainer's; "
        print(f"{message}the comments at the beginning say more", file=sys.stderr)
    print(*_comments(imported), yaml.safe_dump(imported.settings, sort_keys=False), sep="\n", end="")
    return ExitCode.FINISHED


def _comments(found: Imported) -> Iterator[str]:
    """Yield the comments before the settings, what changes the result first."""
    for name, reason in found.differing.items():
        yield f"# {_on_one_line(name)}: {_on_one_line(reason)}"
    if found.unknown:
        yield _paragraph("no arguments of Trainer, and not used: ", found.unknown)
    if found.assumed:
        yield _paragraph("not in the file, so as in Trainer: ", [f"{k}={v}" for k, v in found.assumed.items()])
    for name, reason in found.reasons.items():
        yield f"# {_on_one_line(name)}: {_on_one_line(reason)}"
    if found.others:
        yield _paragraph("without a meaning here: ", found.others)


def _paragraph(begin: str, names: Sequence[str]) -> str:
    text = begin + ", ".join(map(_on_one_line, names))
    return "\n".join(textwrap.wrap(text, 110, initial_indent="# ", subsequent_indent="# "))


def _on_one_line(text: str) -> str:
    return " ".join(text.split())
