"""The command ``data show``: shows a version of a dataset, or rows of a run's data with what is trained on."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, whole
from holdfast.bootstrap.cli.data_versions_command import VERSION, add_version_options, caches_of
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
With a VERSION it shows that version of a dataset; exit code 0, or 3 if there is no such version.

With --rows it takes the settings of `train`, reads the first documents of the data, and prints them as a run would pack
them into rows: with the special tokens, and with what is trained on in green, or in double brackets outside of a
terminal. A line of dashes separates the documents of a row, which do not see each other. No tokens are stored. If the
tokenizer is trained on the data, it is trained and stored as in a run.

examples:
  %(prog)s 64ea80397fa6                        # or its beginning, such as 64e
  %(prog)s runs/default                        # the version that the run has read
  %(prog)s tokens/march                        # the newest version of the data named march in the cache tokens
  %(prog)s ~/.cache/holdfast/tokens/38829cb4   # the folder of a dataset
  %(prog)s --rows 5 --config chat_lora.yaml data.path=chats.jsonl
  %(prog)s --rows 2 --config mine.yaml --json > rows.json
"""


def add_show(commands: Commands) -> None:
    """Add ``show`` to ``commands``, the subcommands of ``data``."""
    parser = add_command(commands, "show", "show one version of a dataset, or rows of data", _HELP, show)
    text = f"{VERSION}; or with --rows a setting, such as data.path=chats.jsonl"
    parser.add_argument("settings", nargs="*", default=[], metavar="VERSION or key.path=value", help=text)
    parser.add_argument("--rows", type=whole(1, 1000), metavar="N", help="show N rows of the data in the settings")
    text = "with --rows, a YAML file of settings, or the name of a ready configuration; may be repeated, later ones win"
    parser.add_argument("--config", type=Path, action="append", default=[], metavar="FILE", help=text)
    add_version_options(parser)


def show(options: argparse.Namespace) -> int:
    """Print a version of a dataset, or the first rows of the data; return the exit code."""
    if options.rows is not None:
        return _show_rows(options)
    from holdfast.bootstrap.operations.dataset_versions import show_version
    from holdfast.domain.errors import ConfigurationError

    if len(options.settings) != 1 or options.config:
        msg = "data show takes one VERSION, or settings with --rows N: name one of them"
        raise ConfigurationError(msg)
    print(show_version(options.settings[0], caches_of(options), as_json=options.json))
    return ExitCode.FINISHED


def _show_rows(options: argparse.Namespace) -> int:
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
        parts = [[[part._asdict() for part in document] for document in row] for row in rows]
        print(json.dumps({"rows": parts}, ensure_ascii=False))
    else:
        print("\n".join(row_lines(rows, is_colored=has_colors(sys.stdout))))
    return ExitCode.FINISHED
