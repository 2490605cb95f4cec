"""The command ``export``: writes a trained model in the format of other programs."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_checkpoint, add_command, add_output, add_trust, add_weights, choice_of
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands
    from holdfast.bootstrap.operations.export_files import Exported, ExportOrder

_HELP = """\
Uses the newest valid checkpoint unless --step, --best or the folder of a checkpoint selects another.
The adapters of a run with model.lora are written in the format of PEFT, or with --merged as a complete model, which
loads without PEFT.

Every export is read back by transformers, and its loss on the held-out documents is printed beside that of the
original. --data FILE, or settings of data as for evaluate, measure on other documents. The folder is written completely
or not at all.

formats:
  huggingface                       the model folder that transformers loads (default)
  huggingface:bf16 huggingface:f16  the same with weights of 16 bits
  gguf:f16 gguf:bf16 gguf:q8_0 gguf:q4_0
                                    one file with model and tokenizer for llama.cpp (pip install "holdfast-lm[gguf]")
  torchao:int8 torchao:int4 torchao:fp8
                                    a model folder with quantized weights (pip install "holdfast-lm[torchao]")

examples:
  %(prog)s runs/default ./model
  %(prog)s runs/tuned ./model --merged
  %(prog)s runs/default ./model-q8 --best --format gguf:q8_0 --max-loss-increase 0.5%%
  %(prog)s runs/default ./model-sparse --sparsity 2:4
"""


def add_export(commands: Commands) -> None:
    """Add ``export`` to ``commands``."""
    parser = add_command(commands, "export", "write a trained model in the format of other programs", _HELP, export)
    add_checkpoint(parser)
    add_weights(parser)
    add_trust(parser)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where to write: a new or empty folder")
    text = "the format, such as gguf:q8_0; default: huggingface"
    parser.add_argument("--format", default="huggingface", metavar="FORMAT", help=text)
    parser.add_argument("--merged", action="store_true", help="merge a run's adapters into the model they adapt")
    text = "set the smallest weights of linear layers to zero: 2 of 4 (2:4), or a share of each layer, such as 0.5"
    parser.add_argument("--sparsity", metavar="2:4|SHARE", help=text)
    text = "write nothing and end with exit code 4 if the loss rises by more than this share, such as 0.005 or 0.5%%"
    parser.add_argument("--max-loss-increase", type=_share, metavar="SHARE", help=text)
    parser.add_argument("--license", metavar="NAME", help="the licence in the model card, such as apache-2.0")
    text = "a file, folder or pattern to measure on instead of the held-out documents; may be repeated"
    parser.add_argument("--data", action="append", default=[], metavar="PATH", help=text)
    parser.add_argument("--unchecked", action="store_true", help="do not read the export back, and measure no loss")
    add_output(parser, shown="progress and no result")
    text = "a setting of data or evaluation, such as evaluation.max_tokens=100000"
    parser.add_argument("settings", nargs="*", default=[], metavar="key.path=value", help=text)


def export(options: argparse.Namespace) -> int:
    """Write a trained model in the format of other programs; return the exit code."""
    from holdfast.bootstrap.operations.export_model import export as write_model
    from holdfast.bootstrap.operations.named_checkpoint import place_of
    from holdfast.bootstrap.operations.trust import stated_trust
    from holdfast.bootstrap.process.json_log import configure_logging
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.signals import exiting_on_termination
    from holdfast.bootstrap.run_folder.run_audit import record_use
    from holdfast.bootstrap.stages.open_run.screen import phases_shown

    order, choice = _order_of(options), choice_of(options)
    configure_logging()
    set_library_defaults()
    run, to = place_of(options.run, choice).path.absolute(), options.folder.absolute()
    with exiting_on_termination(), phases_shown(is_quiet=options.quiet) as show:
        exported = write_model(
            options.run, options.folder, order, choice=choice, trusted=stated_trust(options), show=show
        )
    # by absolute paths: the folder that replaces an empty one may be the working directory of this process
    details = {"location": exported.location, "to": str(to), "format": str(order.format)}
    record_use(run, "CheckpointExported", details)
    _report(options, order, exported)
    return ExitCode.FINISHED


def _order_of(options: argparse.Namespace) -> ExportOrder:
    from holdfast.bootstrap.operations.export_files import ExportOrder
    from holdfast.bootstrap.operations.other_data import OtherData
    from holdfast.domain.errors import ConfigurationError
    from holdfast.domain.training.export_format import ExportFormat, Sparsity

    data = OtherData(options.data, options.settings)
    if options.unchecked and (data != OtherData([], []) or options.max_loss_increase is not None):
        msg = "--unchecked measures no loss: leave it out, or leave out --max-loss-increase and the data to measure on"
        raise ConfigurationError(msg)
    return ExportOrder(
        format=ExportFormat.parse(options.format),
        merged=options.merged,
        sparsity=None if options.sparsity is None else Sparsity.parse(options.sparsity),
        max_loss_increase=options.max_loss_increase,
        license=options.license,
        is_checked=not options.unchecked,
        data=data,
    )


def _report(options: argparse.Namespace, order: ExportOrder, exported: Exported) -> None:
    from holdfast.bootstrap.process.printing import fitting, report_line, short
    from holdfast.domain.training.export_format import ExportKind

    if options.json:
        print(json.dumps(_figures(options, order, exported), indent=1, allow_nan=False))
    for note in exported.notes:
        report_line(f"note: {note}")
    if options.json or options.quiet:
        return
    reader = "llama.cpp" if order.format.kind is ExportKind.GGUF else "transformers"
    place = f"{options.folder}{'' if exported.is_new else ' already'}"
    print(fitting(f"{short(exported.location)} is in {place}, as {reader} loads it"))
    if (change := exported.change) is not None:
        losses = f"{change.after:.4f} nats/token as {order.format}, {change.before:.4f} before ({change.increase:+.2%})"
        print(fitting(f"held-out loss: {losses} · {change.num_targets:,} tokens"))
    if exported.zeros is not None:
        print(f"zeros: {exported.zeros:.1%} of the weights in linear layers")


def _figures(options: argparse.Namespace, order: ExportOrder, exported: Exported) -> dict[str, object]:
    change = exported.change
    losses = None if change is None else (change.before, change.after, change.increase)
    before, after, increase = (None, None, None) if losses is None else (_finite(each) for each in losses)
    return {
        "checkpoint": exported.location,
        "folder": str(options.folder),
        "format": str(order.format),
        "is_new": exported.is_new,
        "bytes": exported.num_bytes,
        "loss_before": before,
        "loss_after": after,
        "loss_increase": increase,
        "tokens": None if change is None else change.num_targets,
        "zeros": exported.zeros,
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def _share(text: str) -> float:
    number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= number < math.inf:
        raise ValueError
    return number


_share.__name__ = "share of at least 0"  # argparse prints it
