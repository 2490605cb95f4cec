"""One short run of `verify-resume` in its own process: the user's run, except that it ends early."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from holdfast.bootstrap.adapter_choice.process_group import is_first_rank
from holdfast.bootstrap.process.exit_codes import ExitCode, code_of_signal, end_with, guarded
from holdfast.bootstrap.process.json_log import configure_logging
from holdfast.bootstrap.process.launch import ending_with_launcher, launch, processes_to_start
from holdfast.bootstrap.process.library_environment import set_library_defaults
from holdfast.bootstrap.process.signals import stopping_on_signals
from holdfast.bootstrap.run import Run
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.verification.fault_catalog import Planned
from holdfast.bootstrap.verification.faults import faults_of
from holdfast.configs.sections.monitors import JsonlMonitorSettings, ProfileSettings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.events import StepCompleted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.configs.settings import TrainSettings

MODULE = "holdfast.bootstrap.verification.short_run"
_MOST_EVALUATED = 4096  # tokens
_LONGEST_SAVE = 600.0  # seconds
_MOST_KEPT = 20
_HANG_SECONDS = 5.0
_SLOW_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class ShortRun:
    """The settings and length of one of the runs, the step after which it kills itself, if any, and its faults."""

    config: Sequence[str]
    settings: Sequence[str]
    folder: str
    steps: int
    every: int
    kill_after: int | None = None
    faults: Sequence[Planned] = ()

    @property
    def killed(self) -> Path:
        """Return the file that marks that the run has killed itself."""
        folder = Path(self.folder)
        return folder.with_name(f"{folder.name}.killed")

    def happened(self, place: int) -> Path:
        """Return the file that marks that the fault at ``place`` in ``faults`` has happened."""
        folder = Path(self.folder)
        return folder.with_name(f"{folder.name}.happened-{place}")

    def to_argument(self) -> str:
        """Return the run as one argument of the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_argument(cls, argument: str) -> Self:
        """Return the run of an argument that ``to_argument`` made."""
        plan = json.loads(argument)
        return cls(**{**plan, "faults": [Planned(**fault) for fault in plan["faults"]]})


def shortened(settings: TrainSettings, run: ShortRun) -> TrainSettings:
    """Return ``settings`` for a short run: the same data, model, seed, optimizer and budget, which the schedule needs.

    It differs in the folder, in the checkpoints that are kept, in monitors and records without effect on training, and
    in the timeout of a hanging step if a drill makes a step hang.
    """
    changes: dict[str, Any] = {
        "run": {"dir": Path(run.folder), "budget": settings.run.budget.without_minutes(run.steps)},
        "state_store": {
            "every": run.every,
            "keep": min(run.steps, _MOST_KEPT),
            "keep_best": 0,
            "archive": None,
            "disk_budget": None,
        },
        "evaluation": {
            "every": 0,
            "at_start": False,
            "max_tokens": min(settings.evaluation.max_tokens, _MOST_EVALUATED),
        },
    }
    if any(fault.drill == "hang" for fault in run.faults):
        watchdog = settings.recovery.watchdog.model_copy(
            update={"min_seconds": _HANG_SECONDS, "slow_seconds": _SLOW_SECONDS}
        )
        changes["recovery"] = {"watchdog": watchdog}
    sections = {name: dict(settings)[name].model_copy(update=update) for name, update in changes.items()}
    return settings.model_copy(update={**sections, "monitors": (JsonlMonitorSettings(),), "profile": ProfileSettings()})


def main(arguments: Sequence[str]) -> int:
    """Do the run of ``arguments``, which hold one ``ShortRun``; return the exit code."""
    return guarded(lambda: _train(arguments))


def _train(arguments: Sequence[str]) -> int:
    configure_logging()
    set_library_defaults()
    plan = ShortRun.from_argument(arguments[0])
    settings = load_settings([Path(path) for path in plan.config], plan.settings, os.environ).settings
    if (num_processes := processes_to_start(settings)) > 1:
        return launch(arguments, num_processes, module=MODULE)
    run = Run(shortened(settings, plan), faults_of(plan.faults, plan.happened), report=_report)
    run.may_exit = True

    def on_step(event: StepCompleted) -> None:
        if event.progress.step == plan.kill_after and is_first_rank():
            _die(plan)
        if event.progress.step >= plan.steps and is_first_rank():
            run.request_stop("it has taken the steps that are compared")

    run.subscribe(StepCompleted, on_step)
    grace = settings.recovery.grace_seconds
    with stopping_on_signals(run.request_stop), ending_with_launcher(run.request_stop, grace):
        run.run()
    stop = None if run.stopped_by is None else run.stopped_by.signal
    return ExitCode.FINISHED if stop is None else code_of_signal(stop)


def _report(line: str) -> None:
    if is_first_rank():
        sys.stdout.write(f"  {line}\n")
        sys.stdout.flush()


def _die(plan: ShortRun) -> None:
    """Kill this process by SIGKILL once the first checkpoint is complete, so that the steps after it are lost."""
    saved = RunLayout(Path(plan.folder)).checkpoint(plan.every)
    deadline = time.monotonic() + _LONGEST_SAVE
    while not saved.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    plan.killed.touch()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    end_with(lambda: main(sys.argv[1:]))
