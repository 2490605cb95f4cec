"""The command ``evaluate``: measures a trained model on held-out documents, on other data or by benchmark suites."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import (
    add_checkpoint,
    add_command,
    add_output,
    add_trust,
    add_weights,
    choice_of,
    whole,
)
from holdfast.bootstrap.process.exit_codes import ExitCode
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.bootstrap.cli.arguments import Commands
    from holdfast.bootstrap.operations.other_data import OtherData
    from holdfast.domain.training.step_outcome import Evaluation

_HELP = """\
Uses the newest valid checkpoint unless --step, --best or the folder of a checkpoint selects another.
Measures on the documents that the run held out and on the sets of evaluation.sets, exactly as the run itself does, or
on all documents of other data: --data names files, and settings of data name any other source. Row length, transforms
and data.text_field are then those of the run unless they are set. At most evaluation.max_tokens tokens are measured.
With --suite, tasks of lm-evaluation-harness are evaluated instead, with the settings evaluation.harness of the run.

examples:
  %(prog)s runs/default
  %(prog)s runs/default --step 100 --json
  %(prog)s runs/default --best --data test.jsonl data.text_field=body evaluation.max_tokens=1000000
  %(prog)s runs/default data.kind=huggingface data.path=roneneldan/TinyStories data.split=validation
  %(prog)s runs/default --suite arc_easy --suite piqa evaluation.harness.limit=200
"""


def add_evaluate(commands: Commands) -> None:
    """Add ``evaluate`` to ``commands``."""
    parser = add_command(commands, "evaluate", "measure a trained model on its held-out documents", _HELP, evaluate)
    add_checkpoint(parser)
    add_weights(parser)
    add_trust(parser)
    text = "a file, folder or pattern to measure on instead of the held-out documents; may be repeated"
    parser.add_argument("--data", action="append", default=[], metavar="PATH", help=text)
    text = 'a task or group of lm-evaluation-harness (pip install "holdfast-lm[eval]"); may be repeated'
    parser.add_argument("--suite", action="append", default=[], metavar="NAME", help=text)
    add_output(parser, shown="progress and no result")
    parser.add_argument("--parent", type=whole(1), help=argparse.SUPPRESS)
    text = "a setting of data or evaluation, such as data.text_field=body"
    parser.add_argument("settings", nargs="*", default=[], metavar="key.path=value", help=text)


def evaluate(options: argparse.Namespace) -> int:
    """Print a trained model's loss on its held-out documents or on other data, or its results in suites.

    Returns the exit code.
    """
    from holdfast.bootstrap.operations.other_data import OtherData
    from holdfast.bootstrap.process.json_log import configure_logging
    from holdfast.bootstrap.process.launch import end_with_parent
    from holdfast.bootstrap.process.library_environment import set_library_defaults

    if options.parent is not None:
        end_with_parent(options.parent)
    configure_logging()
    set_library_defaults()
    data = OtherData(options.data, options.settings)
    return _evaluate_suites(options, data) if options.suite else _measure(options, data)


def _measure(options: argparse.Namespace, data: OtherData) -> int:
    from holdfast.bootstrap.operations.trained_model import open_trained
    from holdfast.bootstrap.operations.trust import stated_trust
    from holdfast.bootstrap.process.printing import fitting, short
    from holdfast.bootstrap.stages.open_run.screen import phases_shown

    with phases_shown(is_quiet=options.quiet) as show:
        trained = open_trained(
            options.run, choice=choice_of(options), trusted=stated_trust(options), show=show, data=data
        )
        evaluation = trained.evaluate()
    for note in trained.notes:
        print(f"warning: {note}", file=sys.stderr)
    if options.json:
        parts = {name: _figures(part) for name, part in evaluation.parts.items()}
        weights = "average" if trained.is_averaged else "trained"
        result = {"checkpoint": trained.location, "weights": weights, **_figures(evaluation), "parts": parts}
        print(json.dumps({**result, "is_cut": data.is_named and trained.is_cut}, indent=1, allow_nan=False))
    if options.json or options.quiet:
        return ExitCode.FINISHED
    name = f"{short(trained.location)}{' · average of the weights' if trained.is_averaged else ''}"
    print("\n".join([fitting(f"{name} · {_sentence(evaluation)}"), *_parts(evaluation)]))
    if data.is_named and trained.is_cut:
        text = "these are the first tokens of the data, not all: evaluation.max_tokens=N measures more"
        print(text, file=sys.stderr)
    return ExitCode.FINISHED


def _sentence(evaluation: Evaluation) -> str:
    measured = f"{evaluation.num_targets:,} tokens, {evaluation.num_bytes:,} bytes"
    if evaluation.figures:
        measured = counted(evaluation.num_targets, "pair")
    return " · ".join([*evaluation.words(4), measured])


def _parts(evaluation: Evaluation) -> Sequence[str]:
    from holdfast.bootstrap.process.text_table import table

    if not evaluation.parts:
        return []
    if evaluation.figures:
        pairs = [
            (name, f"{part.loss:.4f}", f"{part.figures['reward_accuracy']:.1%}", f"{part.num_targets:,}")
            for name, part in evaluation.parts.items()
        ]
        return table("<>>>", [("part", "nats/pair", "right order", "pairs"), *pairs])
    rows = [
        (name, f"{part.bits_per_byte:.4f}", f"{part.loss:.4f}", f"{part.num_targets:,}", f"{part.num_bytes:,}")
        for name, part in evaluation.parts.items()
    ]
    return table("<>>>>", [("part", "bits per byte", "nats/token", "tokens", "bytes"), *rows])


def _figures(evaluation: Evaluation) -> dict[str, float | None]:
    figures = {"loss": evaluation.loss, "bits_per_byte": evaluation.bits_per_byte, **evaluation.figures}
    finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
    if evaluation.figures:
        return {**finite, "pairs": evaluation.num_targets}
    return {**finite, "tokens": evaluation.num_targets, "bytes": evaluation.num_bytes}


def _evaluate_suites(options: argparse.Namespace, changes: OtherData) -> int:
    from holdfast.bootstrap.operations.evaluate_suites import evaluate_suites
    from holdfast.bootstrap.operations.trust import stated_trust
    from holdfast.bootstrap.process.text_table import table
    from holdfast.bootstrap.stages.open_run.screen import phases_shown
    from holdfast.domain.errors import ConfigurationError

    if changes.is_named:
        msg = "a suite has data of its own: leave out --data and the settings of data, or leave out --suite"
        raise ConfigurationError(msg)
    choice, trusted = choice_of(options), stated_trust(options)
    with phases_shown(is_quiet=options.quiet) as show:
        report = evaluate_suites(options.run, options.suite, choice=choice, trusted=trusted, changes=changes, show=show)
    if options.json:
        result = {"checkpoint": report.location, "harness": report.version, "results": report.results}
        print(json.dumps(result))
    if options.json or options.quiet:
        return ExitCode.FINISHED
    rows = [(task, name, f"{value:.4f}") for task, figures in report.results.items() for name, value in figures.items()]
    print("\n".join([report.location, *table("<<>", [("task", "metric", "value"), *rows])]))
    return ExitCode.FINISHED
