"""The command ``audit``: verifies the hash chain of a run's audit log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, complete_runs, run_folder
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Each line of audit.jsonl contains the hash of the line before, so a line that was changed, removed or moved is detected
and reported. Exit code 0: the chain is intact; 4: it is not.

examples:
  %(prog)s runs/default
  %(prog)s runs/default --holding blake3:5f0c...   # fails if lines were cut off after this entry
"""


def add_audit(commands: Commands) -> None:
    """Add ``audit`` to ``commands``."""
    parser = add_command(commands, "audit", "verify the audit log of a run's checkpoints", _HELP, audit)
    text = "a run: its folder, such as runs/default, or its name in runs; or an audit.jsonl"
    complete_runs(parser.add_argument("path", type=_audited, metavar="PATH", help=text))
    parser.add_argument("--holding", metavar="HASH", help="the last hash of the log, as stored elsewhere")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _audited(text: str) -> Path:
    """Return the file ``text``, or the folder of a run."""
    return Path(text) if os.path.isfile(text) else run_folder(text)  # noqa: PTH113  unlike Path.is_file, it never raises


def audit(options: argparse.Namespace) -> int:
    """Verify the audit log of a run; return the exit code."""
    from holdfast.bootstrap.run_folder.run_audit import audit_run

    is_intact = audit_run(options.path, as_json=options.json, holding=options.holding)
    return ExitCode.FINISHED if is_intact else ExitCode.STATE
