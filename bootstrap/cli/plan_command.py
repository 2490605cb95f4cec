"""The command ``plan``: predicts the memory, disk, time and cost of a run before it is started."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_settings, whole
from holdfast.bootstrap.process.exit_codes import EXIT_CODES, ExitCode, code_of_signal

if TYPE_CHECKING:
    import argparse

    from holdfast.bootstrap.cli.arguments import Commands

_HELP = """\
Takes the settings of `train`, refuses what `train` would refuse, and tokenizes the data where `train` will look for
them. Then it takes a few steps with an evaluation and a checkpoint in a temporary folder beside run.dir, in a process
of its own, and prints what the whole run will take: memory by part and by rank, tokens and epochs, bytes on disk,
time, and cost, with one packed row as the model will read it. Only the tokens and the tokenizer stay, for `train`.
See docs/plan.md.

examples:
  python -m application plan
  python -m application plan --config mine.yaml --price-per-hour 12.5
  python -m application plan --no-trial --config mine.yaml   # formulas only: no step, and no tokens are stored
  python -m application plan --config mine.yaml --json > plan.json

"""


def add_plan(commands: Commands) -> None:
    """Add ``plan`` to ``commands``."""
    summary = "predict the memory, disk, time and cost of a run"
    parser = add_command(commands, "plan", summary, _HELP + EXIT_CODES, plan)
    add_settings(parser)
    text = "price of an hour of all machines of the run together, in any currency"
    parser.add_argument("--price-per-hour", type=_price, metavar="P", help=text)
    trial = parser.add_mutually_exclusive_group()
    text = "least number of steps of the trial; default: 12"
    trial.add_argument("--steps", type=whole(4, 100_000), default=12, metavar="N", help=text)
    text = "print only what the formulas say: no step is taken, and there is no time or cost"
    trial.add_argument("--no-trial", action="store_true", help=text)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def plan(options: argparse.Namespace) -> int:
    """Print the plan of a run; return the exit code."""
    from holdfast.bootstrap.adapter_choice.process_group import is_first_rank
    from holdfast.bootstrap.cli.plan_lines import plan_lines
    from holdfast.bootstrap.operations.plan_run import PlanRequest, RunPlanner, refuse_full_disk
    from holdfast.bootstrap.process.child_run import ChildFailedError
    from holdfast.bootstrap.process.json_log import configure_logging
    from holdfast.bootstrap.process.library_environment import set_library_defaults
    from holdfast.bootstrap.process.printing import print_notes
    from holdfast.bootstrap.process.signals import StoppedAtOnce
    from holdfast.configs.settings_layers import load_settings
    from holdfast.domain.errors import ConfigurationError

    configure_logging()
    set_library_defaults()
    if options.no_trial and options.price_per_hour is not None:
        msg = "--price-per-hour needs the time of a trial: leave --no-trial away"
        raise ConfigurationError(msg)
    if options.no_trial and not is_first_rank():
        return ExitCode.FINISHED  # the first rank prints the plan of all
    resolved = load_settings(options.config, options.settings, os.environ)
    print_notes(resolved.notes, sys.stderr)
    steps = 0 if options.no_trial else options.steps
    request = PlanRequest(resolved.settings, options.config, options.settings, steps, options.price_per_hour)
    try:
        plan = RunPlanner(request).plan(is_quiet=options.json)
    except ChildFailedError as error:
        return error.code
    except StoppedAtOnce as stop:
        return code_of_signal(stop.number)
    print(json.dumps(plan, indent=1, ensure_ascii=False) if options.json else "\n".join(plan_lines(plan)))
    refuse_full_disk(plan)
    return ExitCode.FINISHED


def _price(text: str) -> float:
    number = float(text)
    if not 0.0 <= number < float("inf"):
        raise ValueError
    return number


_price.__name__ = "price of 0 or more"  # argparse prints it
