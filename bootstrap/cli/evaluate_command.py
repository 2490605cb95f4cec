"""The command ``evaluate``: measures a trained model on held-out documents or on other data."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_checkpoint, add_command, add_trust, choice_of
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Uses the newest valid checkpoint unless --step, --best or the folder of a checkpoint selects another.
Measures on the documents that the run held out, exactly as the run itself does, or on all documents of other data:
--data names files, and settings of data name any other source. Row length, transforms and data.text_field are then
those of the run unless they are set. At most evaluation.max_tokens tokens are measured.

examples:
  %(prog)s runs/default
  %(prog)s runs/default --step 300
  %(prog)s runs/default --best --data test.jsonl data.text_field=body evaluation.max_tokens=1000000
  %(prog)s runs/default data.kind=huggingface data.path=roneneldan/TinyStories data.split=validation
"""


def add_evaluate(commands: Commands) -> None:
    """Add ``evaluate`` to ``commands``."""
    parser = add_command(commands, "evaluate", "measure a trained model on its held-out documents", _HELP, evaluate)
    add_checkpoint(parser)
    add_trust(parser)
    text = "a file, folder or pattern to measure on instead of the held-out documents; may be repeated"
    parser.add_argument("--data", action="append", default=[], metavar="PATH", help=text)
    text = "a setting of data or evaluation, such as data.text_field=body"
    parser.add_argument("settings", nargs="*", metavar="key.path=value", help=text)


def evaluate(options: argparse.Namespace) -> int:
    """Print a trained model's loss on its held-out documents, or on other data; return the exit code."""
    from holdfast.bootstrap.operations.other_data import OtherData
    from holdfast.bootstrap.operations.trained_model import open_trained
    from holdfast.bootstrap.operations.trust import stated_trust
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.log_settings import configure_logging
    from holdfast.bootstrap.wiring.screen import phases_shown

    configure_logging()
    set_library_defaults()
    data, trusted = OtherData(options.data, options.settings), stated_trust(options)
    with phases_shown() as show:
        trained = open_trained(options.run, choice=choice_of(options), trusted=trusted, show=show, data=data)
        evaluation = trained.evaluate()
    print(
        f"{trained.location} · {evaluation.bits_per_byte:.4f} bits per byte · {evaluation.loss:.4f} nats/token · "
        f"{evaluation.num_targets:,} tokens, {evaluation.num_bytes:,} bytes"
    )
    if data.is_named and trained.is_cut:
        text = "these are the first tokens of the data, not all: evaluation.max_tokens=N measures more"
        print(text, file=sys.stderr)
    return ExitCode.FINISHED
