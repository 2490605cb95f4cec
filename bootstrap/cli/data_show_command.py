"""The command ``data show``: prints rows of a run's data, with what is trained on."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_settings, whole
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Takes the settings of `train`, reads the first documents of the data, and prints them as a run would pack them into
rows: with the special tokens, and with what is trained on in green, or in double brackets outside of a terminal. A line
of dashes separates the documents of a row, which do not see each other. No tokens are stored. If the tokenizer is
trained on the data, it is trained and stored as in a run.

examples:
  %(prog)s --config chat_lora.yaml data.path=chats.jsonl
  %(prog)s --rows 5 --config mine.yaml
  %(prog)s --config mine.yaml --json > rows.json
"""


def add_show(commands: Commands) -> None:
    """Add ``show`` to ``commands``, the subcommands of ``data``."""
    command = add_command(commands, "show", "show rows of the data, with what is trained on", _HELP, show)
    add_settings(command)
    command.add_argument("--rows", type=whole(1, 1000), default=1, metavar="N", help="the number of rows; default: 1")
    command.add_argument("--json", action="store_true", help="print one JSON object")


def show(options: argparse.Namespace) -> int:
    """Print the first rows of the data; return the exit code."""
    import json

    from holdfast.bootstrap.operations.show_data import rows_of_data
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.log_settings import configure_logging
    from holdfast.bootstrap.process.printing import print_notes, report_line
    from holdfast.bootstrap.wiring.marked_rows import has_colors, row_lines
    from holdfast.bootstrap.wiring.screen import phases_shown
    from holdfast.configs.settings_layers import load_settings

    configure_logging()
    set_library_defaults()
    resolved = load_settings(options.config, options.settings, os.environ)
    print_notes(resolved.notes, sys.stderr)
    with phases_shown(is_quiet=options.json) as phases:
        rows = rows_of_data(resolved.settings, options.rows, report_line, phases)
    if options.json:
        parts = [[[{"text": text, "is_trained": is_it} for text, is_it in document] for document in row] for row in rows]
        print(json.dumps({"rows": parts}, ensure_ascii=False))
    else:
        print("\n".join(row_lines(rows, is_colored=has_colors(sys.stdout))))
    return ExitCode.FINISHED
