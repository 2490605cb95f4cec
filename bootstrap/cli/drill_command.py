"""The command ``drill``: injects faults into a short run and reports whether it survives."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.arguments import add_command, add_settings, whole
from holdfast.bootstrap.process.exit_codes import ExitCode, code_of_signal
from holdfast.bootstrap.verification.fault_catalog import DRILLS, SOAK
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from holdfast.bootstrap.cli.arguments import Commands
    from holdfast.bootstrap.verification.drill import Outcome, SoakOutcome

_HELP = """\
Takes the settings of `train` and trains a few steps in a temporary folder beside run.dir: once without interruption,
and once for each drill, which injects a fault into the run. If the fault ends the run, the same command is started
again, as `train --supervise` does. Then losses, positions in the data and the last checkpoints are compared.

examples:
  %(prog)s kill
  %(prog)s all --config configs/own_text.yaml
  %(prog)s oom run.name=mine --json
  %(prog)s soak --faults 100           # all drills that apply, at random, in one supervised run

exit codes:
  0   the run survived every fault, and ended as its configuration promises
  4   it did not, or the fault did not occur

drills:
"""


def add_drill(commands: Commands) -> None:
    """Add ``drill`` to ``commands``."""
    text = _HELP + "".join(f"  {name:14}{words}\n" for name, words in {**DRILLS, "soak": SOAK}.items())
    parser = add_command(commands, "drill", "inject a fault into a short run, and see whether it survives", text, drill)
    names, text = [*DRILLS, "soak", "all", "list"], "one of the names below, all or list"
    parser.add_argument("drill", choices=names, metavar="DRILL", help=text)
    add_settings(parser)
    parser.add_argument("--steps", type=whole(3), metavar="N", help="steps to train (not for soak); default: 6")
    parser.add_argument("--faults", type=whole(1), metavar="N", help="number of faults of a soak; default: 20")
    parser.add_argument("--seed", type=whole(0), metavar="N", help="seed that draws the faults of a soak; default: 1")
    parser.add_argument("--keep", action="store_true", help="keep the folder of all runs, and print its path")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each drill")


def drill(options: argparse.Namespace) -> int:
    """Print whether a short run with these settings survives each fault; return the exit code."""
    from holdfast.bootstrap.process.child_run import ChildFailedError
    from holdfast.bootstrap.process.printing import print_notes
    from holdfast.bootstrap.process.signals import StoppedAtOnce
    from holdfast.bootstrap.verification.drill import Drills, Soak, applying
    from holdfast.bootstrap.verification.resume import VerifyResume
    from holdfast.configs.settings_layers import load_settings

    if options.drill == "list":
        print("\n".join(f"{name:12}{words}" for name, words in {**DRILLS, "soak": SOAK}.items()))
        return ExitCode.FINISHED
    resolved = load_settings(options.config, options.settings, os.environ)
    settings = resolved.settings
    print_notes(resolved.notes, sys.stderr)
    steps, faults, seed = _numbers(options)
    proof = VerifyResume(settings, options.config, options.settings, steps)
    names = applying(settings) if options.drill == "all" else [options.drill]
    has_survived = True
    try:
        outcomes: Iterator[Outcome | SoakOutcome]
        if options.drill == "soak":
            outcomes = iter([Soak(proof, faults, seed).run(keep=options.keep)])
        else:
            outcomes = Drills(proof).run(names, keep=options.keep)
        for outcome in outcomes:
            print(outcome.to_json() if options.json else outcome.line(), flush=True)
            has_survived = has_survived and outcome.survived
    except ChildFailedError as error:
        return error.code
    except StoppedAtOnce as stop:
        return code_of_signal(stop.number)
    return ExitCode.FINISHED if has_survived else ExitCode.STATE


def _numbers(options: argparse.Namespace) -> tuple[int, int, int]:
    """Return the steps, faults and seed of a drill.

    Raises ``ConfigurationError`` if an option that does not apply to it was given.
    """
    is_soak = options.drill == "soak"
    given = {"steps": options.steps} if is_soak else {"faults": options.faults, "seed": options.seed}
    for name, value in given.items():
        if value is not None:
            why = "the length of a soak follows from its faults" if is_soak else "it is for `drill soak`"
            msg = f"--{name} does not apply to `drill {options.drill}`, {why}: leave it out"
            raise ConfigurationError(msg)
    return options.steps or 6, options.faults or 20, 1 if options.seed is None else options.seed


_VERIFY_HELP = """\
Takes the settings of `train` and trains a few steps twice, in a temporary folder beside run.dir: once without
interruption, and once killed (SIGKILL) some steps after its last checkpoint and resumed by a new process.
Data, model, seed, schedule, optimizer, processes and encryption are those of the run, and so are handlers of other
packages; evaluation, profile, archive and other monitors are off. Then the loss and gradient norm of each step, the
positions in the data and every byte of the last checkpoints are compared.

examples:
  %(prog)s
  %(prog)s --config configs/own_text.yaml --steps 12
  %(prog)s run.name=mine --json > proof.json

exit codes:
  0   equal bit for bit, or within rounding where no more is promised (run.deterministic=false, or conditions that make
      the contract of a checkpoint numerical)
  4   not equal
  any other: one of the runs failed with it
Within rounding means: equal positions, and each loss and gradient norm within a relative difference of 0.001 (0.01 in
half precision).
"""


def add_verify_resume(commands: Commands) -> None:
    """Add ``verify-resume`` to ``commands``."""
    summary = "test that a run with these settings resumes exactly"
    parser = add_command(commands, "verify-resume", summary, _VERIFY_HELP, verify_resume)
    add_settings(parser)
    parser.add_argument("--steps", type=whole(3), default=6, metavar="N", help="steps to train; default: 6")
    parser.add_argument("--keep", action="store_true", help="keep the folder of both runs, and print its path")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def verify_resume(options: argparse.Namespace) -> int:
    """Print whether a run with these settings resumes exactly; return the exit code."""
    from holdfast.bootstrap.process.child_run import ChildFailedError
    from holdfast.bootstrap.process.printing import print_notes
    from holdfast.bootstrap.process.signals import StoppedAtOnce
    from holdfast.bootstrap.verification.resume import VerifyResume
    from holdfast.configs.settings_layers import load_settings

    resolved = load_settings(options.config, options.settings, os.environ)
    settings = resolved.settings
    print_notes(resolved.notes, sys.stderr)
    proof = VerifyResume(settings, options.config, options.settings, options.steps)
    try:
        verdict = proof.run(keep=options.keep)
    except ChildFailedError as error:
        return error.code
    except StoppedAtOnce as stop:
        return code_of_signal(stop.number)
    print(verdict.to_json() if options.json else "\n".join(verdict.lines()))
    return ExitCode.FINISHED if verdict.holds else ExitCode.STATE
