"""The command ``pin``: protects a checkpoint from deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_run, whole
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
A pinned checkpoint is not deleted, whatever state_store.keep says, until it is released. The run may be training.

examples:
  %(prog)s runs/default 150
  %(prog)s runs/default 150 --release
"""


def add_pin(commands: Commands) -> None:
    """Add ``pin`` to ``commands``."""
    parser = add_command(commands, "pin", "protect a checkpoint of a run from deletion", _HELP, pin)
    add_run(parser)
    parser.add_argument("step", type=whole(1, 10**18 - 1), metavar="STEP", help="the step of the checkpoint")
    parser.add_argument("--release", action="store_true", help="remove the pin: state_store.keep applies again")


def pin(options: argparse.Namespace) -> int:
    """Pin a checkpoint, or remove its pin; return the exit code. Raises ``StateError`` if the pins are unwritable."""
    from holdfast.adapters.shared.files.file_operations import FileOperations, explain
    from holdfast.adapters.state_store.store_folder import StoreFolder
    from holdfast.bootstrap.run_folder.record_file import refuse_study
    from holdfast.domain.errors import StateError

    refuse_study(options.run)
    folder = StoreFolder(options.run, FileOperations())
    try:
        (folder.unpin if options.release else folder.pin)(options.step)
    except OSError as error:
        msg = f"the pins of {options.run} cannot be changed, {explain(error)}"
        raise StateError(msg) from error
    print(f"checkpoint {options.step} is {'left to state_store.keep' if options.release else 'kept until --release'}")
    return ExitCode.FINISHED
