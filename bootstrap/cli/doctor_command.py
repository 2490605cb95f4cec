"""The command ``doctor``: checks this machine for the settings of a run."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_settings, whole
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Takes the settings of `train`, and checks whether a run with them would work on this machine: versions, extras, devices,
memory, disks, the places on the network that the settings name, ports and the clock. Each line has a verdict and, where
something is wrong, what to do. Nothing is trained, and no file is left behind. Exit code 0: no error, though perhaps
warnings; 1: an error that would keep the run from working; 2: the settings are invalid.

examples:
  %(prog)s
  %(prog)s --config own_text data.path='s3://bucket/*.jsonl.zst'
  %(prog)s --json --config own_text data.path=texts
"""


def add_doctor(commands: Commands) -> None:
    """Add ``doctor`` to ``commands``."""
    parser = add_command(commands, "doctor", "check whether a run would work on this machine", _HELP, doctor)
    add_settings(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    text = "seconds that a check may take; default: 10"
    parser.add_argument("--timeout", type=whole(1, 3600), default=10, metavar="SECONDS", help=text)


def doctor(options: argparse.Namespace) -> int:
    """Print the findings on this machine for the settings; return the exit code."""
    from holdfast.bootstrap.doctor.diagnosis import diagnose
    from holdfast.bootstrap.doctor.finding import CheckVerdict
    from holdfast.bootstrap.doctor.findings_report import as_data, as_lines, worst_of
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.log_settings import configure_logging
    from holdfast.bootstrap.process.printing import print_notes
    from holdfast.bootstrap.wiring.screen import phases_shown
    from holdfast.configs.settings_layers import load_settings

    configure_logging()
    set_library_defaults()
    resolved = load_settings(options.config, options.settings, os.environ)
    print_notes(resolved.notes, sys.stderr if options.json else None)
    with phases_shown(is_quiet=not sys.stderr.isatty()) as show:
        findings = diagnose(resolved.settings, options.timeout, show)
    if options.json:
        print(json.dumps(as_data(findings), indent=1))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print("\n".join(as_lines(findings, width)))
    return ExitCode.FAILED if worst_of(findings) is CheckVerdict.ERROR else ExitCode.FINISHED
