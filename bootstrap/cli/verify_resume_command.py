"""The command ``verify-resume``: tests that a run with these settings resumes exactly."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_settings, whole
from holdfast.bootstrap.process.exit_codes import ExitCode, code_of_signal

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Takes the settings of `train` and trains a few steps twice, in a temporary folder beside run.dir: once without
interruption, and once killed (SIGKILL) some steps after its last checkpoint and resumed by a new process.
Data, model, seed, schedule, optimizer, processes and encryption are those of the run, and so are handlers of other
packages; evaluation, profile, archive and other monitors are off. Then the loss and gradient norm of each step, the
positions in the data and every byte of the last checkpoints are compared.

examples:
  %(prog)s
  %(prog)s --config configs/own_text.yaml --steps 12
  %(prog)s run.name=mine --json > proof.json

exit codes:
  0   equal bit for bit, or within rounding where no more is promised (run.deterministic=false, or conditions that make
      the contract of a checkpoint numerical)
  4   not equal
  any other: one of the runs failed with it
Within rounding means: equal positions, and each loss and gradient norm within a relative difference of 0.001 (0.01 in
half precision).
"""


def add_verify_resume(commands: Commands) -> None:
    """Add ``verify-resume`` to ``commands``."""
    summary = "test that a run with these settings resumes exactly"
    parser = add_command(commands, "verify-resume", summary, _HELP, verify_resume)
    add_settings(parser)
    parser.add_argument("--steps", type=whole(3), default=6, metavar="N", help="steps to train; default: 6")
    parser.add_argument("--keep", action="store_true", help="keep the folder of both runs, and print its path")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def verify_resume(options: argparse.Namespace) -> int:
    """Print whether a run with these settings resumes exactly; return the exit code."""
    from holdfast.bootstrap.process.child_run import ChildFailedError
    from holdfast.bootstrap.process.printing import print_notes
    from holdfast.bootstrap.process.signals import StoppedAtOnce
    from holdfast.bootstrap.verification.resume import VerifyResume
    from holdfast.configs.settings_layers import load_settings

    resolved = load_settings(options.config, options.settings, os.environ)
    settings = resolved.settings
    print_notes(resolved.notes, sys.stderr)
    proof = VerifyResume(settings, options.config, options.settings, options.steps)
    try:
        verdict = proof.run(keep=options.keep)
    except ChildFailedError as error:
        return error.code
    except StoppedAtOnce as stop:
        return code_of_signal(stop.number)
    print(verdict.to_json() if options.json else "\n".join(verdict.lines()))
    return ExitCode.FINISHED if verdict.holds else ExitCode.STATE
