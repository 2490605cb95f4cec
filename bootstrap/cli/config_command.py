"""The command ``config``: prints the settings, their origins and their descriptions."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_settings
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Prints the settings as YAML that --config accepts, with the origin of each value. Secrets are masked.

examples:
  %(prog)s --config own_text data.path=texts
  %(prog)s --changed --config own_text
  %(prog)s --describe optimizer.schedule data.cache     # without a name: every setting
  %(prog)s --list
  %(prog)s --schema > settings.schema.json              # editors complete and check YAML by it
"""


def add_config(commands: Commands) -> None:
    """Add ``config`` to ``commands``."""
    parser = add_command(commands, "config", "show every setting, its value and where it came from", _HELP, config)
    add_settings(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--changed", action="store_true", help="show only settings that differ from their defaults")
    form.add_argument("--describe", action="store_true", help="list settings with their defaults and descriptions")
    form.add_argument("--list", action="store_true", help="list the configurations that come with this package")
    form.add_argument("--schema", action="store_true", help="print the JSON Schema of a file for --config")


def config(options: argparse.Namespace) -> int:
    """Print the resolved settings, or the settings that exist; return the exit code."""
    from holdfast.configs.aliases import current_name
    from holdfast.configs.json_schema import schema_text
    from holdfast.configs.ready_configurations import list_ready
    from holdfast.configs.rendering import render
    from holdfast.configs.settings_catalog import describe_settings
    from holdfast.configs.settings_layers import load_settings

    if options.list:
        print(list_ready())
    elif options.schema:
        print(schema_text())
    elif options.describe:
        print(describe_settings([current_name(setting.partition("=")[0]) for setting in options.settings]))
    else:
        resolved = load_settings(options.config, options.settings, os.environ)
        print(render(resolved, only_changed=options.changed))
    return ExitCode.FINISHED
