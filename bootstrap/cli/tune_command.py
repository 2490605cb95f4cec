"""The command ``tune``: its options, the study that they start, and the learning-rate range test."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_log_format, add_output, add_settings, json_log, whole
from holdfast.bootstrap.process.exit_codes import EXIT_CODES, ExitCode, code_of_signal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.bootstrap.cli.arguments import Commands
    from holdfast.bootstrap.operations.tune_study import TuneRequest, TuneStudy
    from holdfast.domain.tuning.lr_range_test import RangeTestResult

_HELP = """\
Searches for the settings with the best evaluation (tune.metric). Each trial is an ordinary run in a folder of its own,
runs/NAME/trial-0003, trained by `train`. The same command continues a search that was stopped or killed, at the exact
step of each trial, and ends with the same best trial. NAME is run.name. See docs/tuning.md.

The file of --space names the settings to vary:
  optimizer.learning_rate: {low: 1e-4, high: 1e-2, log: true}
  optimizer.batch_size: {choices: [8, 16, 32]}
  model.config.num_hidden_layers: {low: 2, high: 6}

examples:
  python -m application tune --config base.yaml --space space.yaml --trials 20
  python -m application tune --config base.yaml --space space.yaml --tokens 2G --workers 2 tune.pruner=hyperband
  python -m application tune --config base.yaml --find-lr
  python -m application train --config runs/NAME/best.yaml

"""


def add_tune(commands: Commands) -> None:
    """Add ``tune`` to ``commands``."""
    parser = add_command(commands, "tune", "search for better settings, trial by trial", _HELP + EXIT_CODES, tune)
    add_settings(parser)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--space", type=Path, metavar="FILE", help="a YAML file with the settings to vary")
    text = "find a learning rate: one short run in which it rises by factors"
    kind.add_argument("--find-lr", action="store_true", help=text)
    parser.add_argument("--trials", type=whole(1), metavar="N", help="number of trials of the whole search")
    text = "begin no further trial once the trials have trained on N tokens, such as 500M"
    parser.add_argument("--tokens", type=_count, metavar="N", help=text)
    text = "trials that this command trains at once; default: 1"
    parser.add_argument("--workers", type=whole(1, 1024), default=1, metavar="N", help=text)
    text = "start this command on N workers of a Ray cluster, with one trial each"
    parser.add_argument("--ray", type=whole(1, 4096), metavar="N", help=text)
    parser.add_argument("--parent", type=whole(1), help=argparse.SUPPRESS)
    parser.add_argument("--low", type=_rate, default=1e-7, metavar="R", help="--find-lr: first rate; default: 1e-7")
    parser.add_argument("--high", type=_rate, default=1.0, metavar="R", help="--find-lr: last rate; default: 1")
    text = "--find-lr: steps of the test; default: 100"
    parser.add_argument("--steps", type=whole(10, 100_000), default=100, metavar="N", help=text)
    text = "move an existing search aside (it is never deleted) and start a new one"
    parser.add_argument("--fresh", action="store_true", help=text)
    add_output(parser, shown="progress and no summary")
    add_log_format(parser)


def tune(options: argparse.Namespace) -> int:
    """Search for better settings, or test learning rates, and print the result; return the exit code."""
    from holdfast.bootstrap.process.launch import stop_with_parent
    from holdfast.bootstrap.process.library_environment import set_library_defaults

    options.log = json_log(options)
    set_library_defaults()
    if options.parent is not None:
        stop_with_parent(options.parent)
    stream = sys.stderr if options.json else sys.stdout
    report = _print_nothing if options.quiet and options.log is None else partial(print, file=stream, flush=True)
    return _find_rate(options, report) if options.find_lr else _search(options, report)


def _search(options: argparse.Namespace, report: Callable[[str], object]) -> int:
    from holdfast.bootstrap.cli.study_lines import StudyLines
    from holdfast.bootstrap.operations.tune_study import TuneRequest, TuneStudy, study_folder
    from holdfast.bootstrap.process.signals import StoppedAtOnce, stopping_on_signals, write_at_once

    request = TuneRequest(
        options.config, options.settings, options.space, options.trials, options.tokens, options.workers
    )
    if options.fresh:
        _set_aside(study_folder(request), report)
    if options.ray is not None:
        return _search_on_ray(options, request, report)
    study = TuneStudy(request, report)
    lines = StudyLines(study, report, on_end=lambda: _write(study))
    try:
        acknowledge = write_at_once if options.log is None else options.log.write_at_once
        with stopping_on_signals(study.request_stop, acknowledge=acknowledge, will_save=lambda: True):
            lines.begin()
            is_over = study.run(lines)
    except StoppedAtOnce as stop:
        print(f"{stop}: the same command continues from the newest checkpoints", file=sys.stderr)
        return code_of_signal(stop.number)
    finally:
        study.close()
    _show(study, options, is_over=is_over)
    return ExitCode.FINISHED if is_over else code_of_signal(study.stopped_by or 0)


def _search_on_ray(options: argparse.Namespace, request: TuneRequest, report: Callable[[str], object]) -> int:
    """Start the search on a Ray cluster, and print its result; return the exit code."""
    from holdfast.bootstrap.operations.tune_study import TuneStudy, tune_on_ray

    files = [word for path in options.config for word in ("--config", str(path))]
    length = [("--trials", options.trials), ("--tokens", options.tokens)]
    limits = [word for name, number in length if number is not None for word in (name, str(number))]
    chosen = request.load(os.environ).settings.tune.parallel
    parallel = [] if chosen is not None else [f"tune.parallel={options.ray}"]
    request = replace(request, overrides=[*request.overrides, *parallel])
    study = TuneStudy(request, report)  # what is wrong is said before Ray starts
    study.close()
    words = ["tune", *files, "--space", str(options.space), *limits, "--quiet", *request.overrides]
    code = tune_on_ray(words, options.ray, report)
    _show(study, options, is_over=code == ExitCode.FINISHED)
    return code


def _show(study: TuneStudy, options: argparse.Namespace, *, is_over: bool) -> None:
    """Write the report and the best settings, and print the summary."""
    from holdfast.bootstrap.cli.study_lines import summary_of
    from holdfast.bootstrap.operations.study_facts import study_facts

    _write(study)
    facts = study_facts(study.root)
    if options.log is not None:
        options.log.write("result", facts.to_json())
    elif options.json:
        print(json.dumps(facts.to_json(), indent=1))
    elif not options.quiet:
        print(summary_of(facts, is_over=is_over))


def _write(study: TuneStudy) -> None:
    """Write the report and the best settings as they are now."""
    from holdfast.bootstrap.operations.study_facts import study_facts
    from holdfast.bootstrap.run_folder.study_folder import StudyLayout
    from holdfast.bootstrap.web.html_page import write_text
    from holdfast.bootstrap.web.study_html import study_html

    study.write_best()
    write_text(StudyLayout(study.root).report, study_html(study_facts(study.root)))


def _find_rate(options: argparse.Namespace, report: Callable[[str], object]) -> int:
    from holdfast.bootstrap.operations.find_learning_rate import LearningRateTest, RangeTestRequest

    request = RangeTestRequest(options.config, options.settings, options.low, options.high, options.steps)
    test = LearningRateTest(request)
    if options.fresh:
        _set_aside(test.root, report)
    report(f"testing learning rates from {options.low:g} to {options.high:g} in {options.steps} steps, in {test.root}")
    if (code := test.run(report)) != ExitCode.FINISHED:
        return code
    result = test.result()
    figures = {"rates": result.rates, "losses": result.losses, "suggestion": result.suggestion}
    figures |= {"lowest": result.lowest, "diverged": result.diverged, "run": str(test.root)}
    if options.log is not None:
        options.log.write("result", figures)
    elif options.json:
        print(json.dumps(figures, indent=1))
    else:
        files = [word for path in options.config for word in ("--config", str(path))]
        others = [setting for setting in options.settings if not setting.startswith("optimizer.learning_rate=")]
        print("\n".join(_curve(result, [*files, *others])))
    return ExitCode.FINISHED


def _curve(result: RangeTestResult, chosen: Sequence[str]) -> list[str]:
    """Return the curve of a range test as lines, and what it suggests for a run with what was ``chosen``."""
    from holdfast.bootstrap.process.program import called_as
    from holdfast.bootstrap.process.text_table import aligned

    most, width = 24, 40
    every = max(1, -(-len(result.rates) // most))
    points = [*zip(result.rates, result.losses, strict=True)][::every]
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    bars = [round(width * (loss - low) / (high - low)) if high > low else 0 for _, loss in points]
    lines = ["     rate      loss"]
    lines += [f"{rate:9.2e}  {loss:8.4f}  {'#' * bar}" for (rate, loss), bar in zip(points, bars, strict=True)]
    word = f"optimizer.learning_rate={result.suggestion:.2g}"
    rows = [
        ("suggestion", f"{word}  (the loss falls fastest there)"),
        ("lowest loss", f"at {result.lowest:.2g}, too high for a whole run"),
        ("diverges", "not in this test" if result.diverged is None else f"at {result.diverged:.2g}"),
        ("try next", shlex.join([*called_as(), "train", *chosen, word])),
    ]
    return [*lines, "", aligned(rows, whole=("try next",))]


def _set_aside(root: Path, report: Callable[[str], object]) -> None:
    from holdfast.bootstrap.run_folder.run_lock import set_aside

    if (target := set_aside(root)) is not None:
        report(f"the old one is in {target}")


def _count(text: str) -> int:
    from holdfast.domain.sizes import size_in_bytes

    return size_in_bytes(text)


_count.__name__ = "count, such as 500M"  # argparse prints it


def _rate(text: str) -> float:
    number = float(text)
    if not 0.0 < number < float("inf"):
        raise ValueError
    return number


_rate.__name__ = "learning rate above 0"  # argparse prints it


def _print_nothing(_: str) -> None:
    """Print nothing."""
