"""The command ``train``: its options, and the run that they start."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.cli.arguments import add_command, add_log_format, add_output, add_settings, json_log, whole
from holdfast.bootstrap.process.exit_codes import EXIT_CODES, ExitCode, code_of_signal
from holdfast.domain.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.bootstrap.adapter_choice.part_overrides import RunOptions
    from holdfast.bootstrap.cli.arguments import Commands
    from holdfast.bootstrap.cli.summary import Report
    from holdfast.bootstrap.process.json_log import JsonLog
    from holdfast.bootstrap.process.signals import StoppedAtOnce
    from holdfast.bootstrap.run import Run
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.step_outcome import Progress

_MOST_OF_ERROR = 120  # characters

_HELP = """\
Without any setting it trains a small Llama on this machine's Python standard library, in about a minute on
two CPU cores.
The same command continues an unfinished run from its newest valid checkpoint.

examples:
  python -m application train
  python -m application train data.kind=files data.path='text/**/*.jsonl.gz'
  python -m application train --config configs/quickstart.yaml optimizer.learning_rate=1e-3
  python -m application train run.name=gpt2 model.path=./gpt2
  python -m application train --supervise run.name=long run.budget.steps=100000
  python -m application train --from-step 100 optimizer.learning_rate=1e-4   # again from there, with another rate
  python -m application train --on ray distributed.workers='[2, 8]'   # as many as the cluster has room for
  python -m application train --json --quiet > result.json

settings, weakest first: defaults, --config files, HOLDFAST_SECTION__KEY=value in the environment, key.path=value.
`python -m application config` shows each value and where it came from, `config --describe` what each is for.

"""


def add_train(commands: Commands) -> None:
    """Add ``train`` to ``commands``."""
    parser = add_command(commands, "train", "train a model, or continue training it", _HELP + EXIT_CODES, train)
    add_settings(parser, may_be_strict=True)
    begin = parser.add_mutually_exclusive_group()
    text = "move an existing run folder aside (it is never deleted) and start a new run"
    begin.add_argument("--fresh", action="store_true", help=text)
    text = "roll back to the checkpoint of step N; later checkpoints are moved to superseded/"
    begin.add_argument("--from-step", type=whole(1, 10**18 - 1), metavar="N", help=text)
    text = "train in a child process, and restart it if it dies"
    parser.add_argument("--supervise", action="store_true", help=text)
    text = "continue a run although its data have changed since it began"
    parser.add_argument("--accept-changed-data", action="store_true", help=text)
    parser.add_argument("--for-study", type=whole(1), metavar="PROCESS", help=argparse.SUPPRESS)
    text = "train on the workers of a cluster: short for distributed.kind=ray"
    parser.add_argument("--on", choices=("ray",), help=text)
    add_output(parser, shown="progress, no sample and no summary")
    add_log_format(parser)


def train(options: argparse.Namespace) -> int:
    """Train, or continue training, and print a summary, with ``--json`` nothing else; return the exit code."""
    options.settings += options.settings_of_flags
    log = json_log(options)
    if options.on is not None:
        options.settings = [f"distributed.kind={options.on}", *options.settings]
    if options.supervise:  # this process stays small: it is there for as long as the run is
        from holdfast.bootstrap.cli.supervise import supervise

        return supervise(options)
    from holdfast.bootstrap.adapter_choice.process_group import is_first_rank
    from holdfast.bootstrap.cli.arguments import apply_start_options
    from holdfast.bootstrap.process.json_log import configure_logging
    from holdfast.bootstrap.process.launch import stop_with_study
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.printing import fitting, print_line, report_line
    from holdfast.bootstrap.run import build
    from holdfast.configs.settings_layers import load_settings

    if log is None:
        configure_logging()
    set_library_defaults()
    stop_with_study(options.for_study)
    if not is_first_rank():
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  only the first rank prints
    resolved = load_settings(options.config, options.settings, os.environ)
    settings = resolved.settings
    run = build(settings, **_options_of_build(options, log, settings))
    report = _print_nothing if options.quiet else report_line if options.json else print_line
    begin = partial(apply_start_options, options, settings, report)
    if (code := _train_elsewhere(run, options, begin, report)) is not None:
        return code
    for note in resolved.notes:
        report(fitting(note))
    run.begin_with, run.origins = begin, resolved.chosen_origins
    run.awaits_verdicts = options.for_study is not None
    return _train_here(run, _output_of(options, log))


def _options_of_build(options: argparse.Namespace, log: JsonLog | None, settings: TrainSettings) -> RunOptions:
    """Return the arguments of ``build`` by which the first rank writes to ``log``, or to the console without one."""
    from holdfast.bootstrap.adapter_choice.process_group import is_first_rank

    parts: RunOptions = {"accept_changed_data": options.accept_changed_data, "is_quiet": options.quiet}
    if log is None:
        return parts
    parts |= {"is_quiet": True, "report": log.say}
    if is_first_rank():
        from holdfast.bootstrap.process.json_log import LoggedFigures

        has_figures = any(section.kind == "structlog" for section in settings.monitors)
        parts |= {"event_bus": log.listening, "added_monitors": [] if has_figures else [LoggedFigures(log)]}
    return parts


def _train_elsewhere(
    run: Run, options: argparse.Namespace, begin: Callable[[], object], report: Callable[[str], object]
) -> int | None:
    """Train in other processes, if the settings say so, after ``begin``; return the exit code, None if they do not."""
    from holdfast.bootstrap.cli.arguments import resume_arguments
    from holdfast.bootstrap.operations.train_on_ray import is_to_start_on_ray, train_on_ray
    from holdfast.bootstrap.process.launch import launch_until_memory_fits, processes_to_start
    from holdfast.bootstrap.process.program import module_called
    from holdfast.bootstrap.process.signals import StoppedAtOnce
    from holdfast.bootstrap.run_folder.layout import RunLayout

    arguments, module = resume_arguments(options), module_called()
    if (num_processes := processes_to_start(run.settings)) > 1:
        begin()
        report(f"training in {num_processes} processes on this machine")
        grace, sizes = run.settings.recovery.grace_seconds, RunLayout(run.directory).micro_batch
        return launch_until_memory_fits(arguments, num_processes, sizes, report, module=module, grace_seconds=grace)
    if is_to_start_on_ray(run.settings):
        begin()
        try:
            return train_on_ray(run.settings, arguments, run.directory, report, module=module)
        except StoppedAtOnce as stop:
            return _stopped_at_once(stop)
    return None


@final
@dataclass(frozen=True, slots=True)
class _Output:
    """What a run prints beside its monitors: its end, as data for ``write`` if that is given, and answers to signals.

    Without ``write`` the end is a summary for a person. If ``is_quiet``, there is none.
    """

    write: Callable[[Mapping[str, Any]], object] | None
    acknowledge: Callable[[str], object]
    is_quiet: bool


def _output_of(options: argparse.Namespace, log: JsonLog | None) -> _Output:
    from holdfast.bootstrap.process.printing import print_line
    from holdfast.bootstrap.process.signals import write_at_once

    if log is not None:
        return _Output(lambda data: log.write("result", data), log.write_at_once, options.quiet)
    as_text = (lambda data: print_line(json.dumps(data, indent=1))) if options.json else None
    return _Output(as_text, write_at_once, options.quiet)


def _train_here(run: Run, output: _Output) -> int:
    """Train in this process; return the exit code, that of a signal if an error follows one."""
    received: list[int] = []

    def heard(reason: str, number: int) -> bool:
        received.append(number)
        return run.request_stop(reason, number)

    try:
        return _train_hearing(run, heard, output)
    except TrainingError:
        raise
    except Exception as error:
        if not received:
            raise
        return _failed_after_signal(received[0], error)


def _train_hearing(run: Run, heard: Callable[[str, int], bool], output: _Output) -> int:
    """Train until the end or a signal, of which ``heard`` is told; return the exit code."""
    from holdfast.bootstrap.adapter_choice.process_group import is_first_rank
    from holdfast.bootstrap.cli.summary import EndReport, Report, failure_of
    from holdfast.bootstrap.process.launch import ending_with_launcher
    from holdfast.bootstrap.process.printing import unread_output_dropped
    from holdfast.bootstrap.process.process_age import process_age
    from holdfast.bootstrap.process.signals import StoppedAtOnce, stopping_on_signals
    from holdfast.configs.secret_masking import mask

    run.may_exit, run.seconds_before = True, process_age()
    report, end = Report(run, is_quiet=output.is_quiet), EndReport(run, is_first_rank=is_first_rank())
    summarize = unread_output_dropped()(partial(_summarize, report, output))
    try:
        is_heard = is_first_rank() and not output.is_quiet
        acknowledge, grace = output.acknowledge if is_heard else _print_nothing, run.settings.recovery.grace_seconds
        hearing = stopping_on_signals(heard, acknowledge=acknowledge, will_save=run.will_save)
        with hearing, ending_with_launcher(run.request_stop, grace):
            with end.written():
                progress = run.run()
            report.written = end.path
            if run.stopped_by is None or run.stopped_by.signal is None:
                summarize(progress)
                return ExitCode.FINISHED
    except TrainingError as error:
        if output.write is not None and is_first_rank():
            output.write(mask(failure_of(run, error)))
        raise
    except StoppedAtOnce as stop:
        return _stopped_at_once(stop)
    if output.write is not None or output.is_quiet:
        summarize(progress)
        return code_of_signal(run.stopped_by.signal)
    _say_stopped(run, progress)
    return code_of_signal(run.stopped_by.signal)


def _summarize(report: Report, output: _Output, progress: Progress) -> None:
    from holdfast.bootstrap.adapter_choice.process_group import is_first_rank

    if output.write is None:
        report.show(progress)
    elif is_first_rank():
        output.write(report.as_data(progress))


def _say_stopped(run: Run, progress: Progress) -> None:
    """Print where a run that a signal has stopped goes on."""
    from holdfast.bootstrap.process.printing import fitting, print_line, short

    where = run.newest_checkpoint()
    saved = f"at step {progress.step}, saved in {short(where)}" if where else "before there was anything to save"
    print_line(fitting(f"stopped {saved}; the same command continues"))


def _stopped_at_once(stop: StoppedAtOnce) -> int:
    """Print how a run that a signal ended without a save goes on; return the exit code."""
    from holdfast.bootstrap.process.printing import fitting

    text = f"{stop}: the same command continues from the newest checkpoint, if there is one"
    print(fitting(text, sys.stderr), file=sys.stderr)
    return code_of_signal(stop.number)


def _failed_after_signal(number: int, error: Exception) -> int:
    """Print the error of a run that was to stop: what it waited for may have got the signal too; return the code."""
    from holdfast.bootstrap.process.printing import fitting
    from holdfast.configs.error_messages import one_line

    why = one_line(f"{type(error).__name__}: {error}".partition("\n")[0], _MOST_OF_ERROR)
    text = f"stopped by {signal.Signals(number).name} ({why}): the same command continues from the newest checkpoint"
    print(fitting(text, sys.stderr), file=sys.stderr)
    return code_of_signal(number)


def _print_nothing(_: str) -> None:
    """Print nothing, as the first rank prints for all ranks."""
