"""The command ``inspect``: lists the checkpoints of a run and verifies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_checkpoint, add_command, choice_of
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Reads only, so it is safe while the run trains. Hashes every byte unless --quick is given. The training loss and the
last evaluation of a step come from metrics.jsonl. Exit code 0: every checkpoint verifies; 4: one does not, or there is
none.

examples:
  %(prog)s runs/default
  %(prog)s runs/default --quick
  %(prog)s runs/default/checkpoints/checkpoint-150
  %(prog)s runs/default --best          # or --step 150
  %(prog)s runs/default/quarantine/checkpoint-300.wrong-hash
  %(prog)s runs/default --archive      # also lists the copies in the archive
  %(prog)s runs/default --json > report.json

state of a checkpoint or file:
  verified      its bytes are those that were saved
  complete      with --quick: its names and sizes are those that were saved
  not checked   a problem with the whole checkpoint, which is reported, was found first
  other-schema  it was saved by another version; a resume stops with an error
  unreadable    the disk cannot read it; a resume stops with an error
  erased        its key was destroyed, so it can never be read again
  any other     it is damaged: a resume moves it to quarantine under that name and takes the next older one
"""


def add_inspect(commands: Commands) -> None:
    """Add ``inspect`` to ``commands``."""
    parser = add_command(commands, "inspect", "show the checkpoints of a run and whether they verify", _HELP, inspect)
    add_checkpoint(parser, "path")
    parser.add_argument("--quick", action="store_true", help="compare only names and sizes, without hashing")
    parser.add_argument("--archive", action="store_true", help="also list the copies in the run's archive")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def inspect(options: argparse.Namespace) -> int:
    """Print the checkpoints of a run and whether they verify; return the exit code."""
    from holdfast.bootstrap.operations.inspect_run import inspect as look_into
    from holdfast.bootstrap.operations.named_checkpoint import folder_of
    from holdfast.bootstrap.operations.trust import note_trust
    from holdfast.bootstrap.run_folder.record_file import refuse_study
    from holdfast.bootstrap.wiring.screen import phases_shown
    from holdfast.bootstrap.wiring.state_stores import archived_steps

    refuse_study(options.path)
    path = folder_of(options.path, choice_of(options))
    copies = archived_steps(options.path) if options.archive else None
    with phases_shown() as show:
        text, is_sound = look_into(path, hashing=not options.quick, as_json=options.json, copies=copies, show=show)
    print(text)
    if not options.json and (note := note_trust(options.path)) is not None:
        print(note)
    return ExitCode.FINISHED if is_sound else ExitCode.STATE
