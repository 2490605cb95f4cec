"""The command ``average``: makes a checkpoint of the mean of the weights of several checkpoints."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_output, add_run, add_trust, add_weights, base_of, whole
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.bootstrap.cli.arguments import Commands
    from holdfast.bootstrap.operations.average_checkpoints import AverageReport
    from holdfast.domain.training.step_outcome import Evaluation

_HELP = """\
Each checkpoint is verified while it is read. The average is written as a checkpoint of its own, with its origin in its
manifest: evaluate, generate, chat, export and inspect take the folder in place of a run. It has no optimizer state, so
no run continues from it. The newest of the checkpoints and the average are evaluated on the held-out documents.

examples:
  %(prog)s runs/default --last 5
  %(prog)s runs/default --steps 100,150 --weights 1,2 --output ./averaged
  %(prog)s runs/default --last 3 --json
"""


def add_average(commands: Commands) -> None:
    """Add ``average`` to ``commands``."""
    parser = add_command(commands, "average", "average the weights of several checkpoints", _HELP, average)
    add_run(parser)
    chosen = parser.add_mutually_exclusive_group(required=True)
    text = "average the N newest checkpoints"
    chosen.add_argument("--last", type=whole(2), metavar="N", help=text)
    chosen.add_argument("--steps", type=_steps, default=[], metavar="N,N[,N...]", help="average those of these steps")
    text = "relative weights of the checkpoints, by ascending step; default: equal ones"
    parser.add_argument("--weights", type=_weights, metavar="W,W[,W...]", help=text)
    text = "where to write: a new folder; default: averages/ in the run folder"
    parser.add_argument("--output", type=Path, metavar="FOLDER", help=text)
    parser.add_argument("--no-evaluation", action="store_true", help="do not evaluate before and after")
    add_weights(parser)
    add_output(parser, shown="progress and no result")
    add_trust(parser)


def average(options: argparse.Namespace) -> int:
    """Write the average of several checkpoints, and print what it was made of; return the exit code."""
    from holdfast.bootstrap.operations.average_checkpoints import Selection
    from holdfast.bootstrap.operations.average_checkpoints import average as write_average
    from holdfast.bootstrap.operations.trust import stated_trust
    from holdfast.bootstrap.process.json_log import configure_logging
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.run_folder.run_audit import record_use
    from holdfast.bootstrap.stages.open_run.screen import phases_shown

    configure_logging()
    set_library_defaults()
    base = base_of(options, [options.run])
    selection = Selection(options.last, options.steps, options.weights, trained=options.trained, base=base)
    with phases_shown(is_quiet=options.quiet) as show:
        report = write_average(
            options.run,
            selection,
            options.output,
            trusted=stated_trust(options),
            evaluates=not options.no_evaluation,
            show=show,
        )
    steps = [member.info.progress.step for member in report.members]
    record_use(options.run, "CheckpointsAveraged", {"steps": steps, "to": report.location})
    if options.json:
        print(json.dumps(_figures(report), indent=1, allow_nan=False))
    elif not options.quiet:
        print("\n".join(_lines(report)))
    return ExitCode.FINISHED


def _lines(report: AverageReport) -> Iterator[str]:
    """Yield lines for a person: the checkpoints, the evaluations and the place of the average."""
    from holdfast.bootstrap.process.text_table import table
    from holdfast.bootstrap.run_reading.formatting import number

    rows = [
        (str(member.info.progress.step), f"{member.share:.4f}", number(member.info.evaluation_loss))
        for member in report.members
    ]
    yield from table(">>>", [("step", "share", "loss when saved"), *rows])
    if report.before is not None and report.after is not None:
        yield f"before: {_sentence(report.before)} (step {report.members[-1].info.progress.step})"
        yield f"after:  {_sentence(report.after)}"
    else:
        yield "not evaluated"
    yield f"average: {report.location}"


def _sentence(evaluation: Evaluation) -> str:
    return " · ".join(evaluation.words(4))


def _figures(report: AverageReport) -> Mapping[str, object]:
    """Return the report for programs."""
    members = [
        {"step": member.info.progress.step, "share": member.share, "loss": member.info.evaluation_loss}
        for member in report.members
    ]
    return {
        "average": report.location,
        "of": members,
        "before": _measured(report.before),
        "after": _measured(report.after),
    }


def _measured(evaluation: Evaluation | None) -> Mapping[str, float | None] | None:
    if evaluation is None:
        return None
    figures = {"loss": evaluation.loss, "bits_per_byte": evaluation.bits_per_byte}
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def _steps(text: str) -> Sequence[int]:
    steps = [whole(1, 10**18 - 1)(step) for step in text.split(",")]
    if len(set(steps)) < 2:
        raise ValueError
    return steps


_steps.__name__ = "list of two or more steps"  # argparse prints it


def _weights(text: str) -> Sequence[float]:
    weights = [float(weight) for weight in text.split(",")]
    if not all(math.isfinite(weight) and weight > 0 for weight in weights):
        raise ValueError
    return weights


_weights.__name__ = "list of weights above 0"  # argparse prints it
