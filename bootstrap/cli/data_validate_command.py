"""The command ``data validate``: checks the data of a run against its rules."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_settings
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Takes the settings of `train`, reads all records once, and applies data.validation and data.transforms as a run would.
Nothing is tokenized or written. It counts the records that would be left out, by reason, with some examples of each.
Duplicates are not searched, and bytes per token are not checked. The exit code is 3 if a run would end with an error:
a record cannot be used and data.on_error is stop, a rule says stop, or more records are rejected than
data.validation.max_rejected allows.

examples:
  %(prog)s --config data.yaml
  %(prog)s data.path='raw/*.jsonl' data.transforms=[gopher_quality,c4]
  %(prog)s --config data.yaml --json > validated.json
"""


def add_validate(commands: Commands) -> None:
    """Add ``validate`` to ``commands``, the subcommands of ``data``."""
    command = add_command(commands, "validate", "check records against the rules of a run", _HELP, validate)
    add_settings(command, may_be_strict=True)
    command.add_argument("--json", action="store_true", help="print one JSON object")


def validate(options: argparse.Namespace) -> int:
    """Print the records that a run would leave out; return the exit code."""
    import json

    from holdfast.bootstrap.operations.validate_data import validate_data, validation_lines
    from holdfast.bootstrap.process.log_settings import configure_logging
    from holdfast.bootstrap.process.printing import print_notes
    from holdfast.bootstrap.process.progress_bar import ProgressBar
    from holdfast.configs.secret_masking import mask, mask_text
    from holdfast.configs.settings_layers import load_settings

    configure_logging()
    resolved = load_settings(options.config, [*options.settings, *options.settings_of_flags], os.environ)
    print_notes(resolved.notes)
    with ProgressBar("validating") as bar:
        found = validate_data(resolved.settings, bar.show)
    if options.json:
        print(json.dumps(mask(found.to_json()), indent=1))
    else:
        print(mask_text("\n".join(validation_lines(found))))
    return ExitCode.FINISHED if found.problem is None else ExitCode.DATA
