"""The command ``export``: writes a trained model as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_checkpoint, add_command, add_trust, add_weights, choice_of
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Uses the newest valid checkpoint unless --step, --best or the folder of a checkpoint selects another.
The adapters of a run with model.lora are written in the format of PEFT, or with --merged as a complete model, which
loads without PEFT.

examples:
  %(prog)s runs/default ./model
  %(prog)s runs/tuned ./model --merged
  %(prog)s runs/default ./model --best
"""


def add_export(commands: Commands) -> None:
    """Add ``export`` to ``commands``."""
    parser = add_command(commands, "export", "write a trained model as a Hugging Face folder", _HELP, export)
    add_checkpoint(parser)
    add_weights(parser)
    add_trust(parser)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to write: a new or empty folder")
    parser.add_argument("--merged", action="store_true", help="merge a run's adapters into the model they adapt")


def export(options: argparse.Namespace) -> int:
    """Write a trained model as a Hugging Face folder; return the exit code."""
    from holdfast.bootstrap.operations.export_model import export as write_model
    from holdfast.bootstrap.operations.named_checkpoint import place_of
    from holdfast.bootstrap.operations.trust import stated_trust
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.log_settings import configure_logging
    from holdfast.bootstrap.run_folder.run_audit import record_use

    configure_logging()
    set_library_defaults()
    choice = choice_of(options)
    run, to = place_of(options.run, choice).path.absolute(), options.folder.absolute()
    location, is_new = write_model(
        options.run, options.folder, merged=options.merged, choice=choice, trusted=stated_trust(options)
    )
    # by absolute paths: the folder that replaces an empty one may be the working directory of this process
    record_use(run, "CheckpointExported", {"location": location, "to": str(to)})
    print(f"{location} is in {options.folder}{'' if is_new else ' already'}, as transformers loads it")
    return ExitCode.FINISHED
