"""The command ``import-trainer-args``: prints the settings that TrainingArguments of transformers become."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Reads a file of TrainingArguments, as TrainingArguments.to_json_string() gives it, or as YAML. Prints the settings for
--config. Comments name each argument that has no setting, and why. The data and the number of processes are not among
them: set data.path and optimizer.batch_size.

example:
  %(prog)s arguments.json > trainer.yaml
"""


def add_import_trainer_args(commands: Commands) -> None:
    """Add ``import-trainer-args`` to ``commands``."""
    summary = "print the settings that TrainingArguments of transformers become"
    parser = add_command(commands, "import-trainer-args", summary, _HELP, import_trainer_args)
    parser.add_argument("file", type=Path, help="TrainingArguments as JSON or YAML")


def import_trainer_args(options: argparse.Namespace) -> int:
    """Print the settings as YAML; return the exit code."""
    import yaml

    from holdfast.configs.trainer_arguments import import_arguments
    from holdfast.domain.errors import ConfigurationError

    try:
        given = yaml.safe_load(options.file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        message = f"{options.file} cannot be read as TrainingArguments ({reason}): give JSON or YAML"
        raise ConfigurationError(message) from error
    if not isinstance(given, dict):
        message = f"{options.file} has no arguments by name: give the JSON of TrainingArguments.to_json_string()"
        raise ConfigurationError(message)
    settings, reasons = import_arguments(given)
    for name, reason in reasons.items():
        print(f"# {' '.join(str(name).split())}: {' '.join(reason.split())}")
    print(yaml.safe_dump(settings, sort_keys=False), end="")
    return ExitCode.FINISHED
