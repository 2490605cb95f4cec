"""``tune --find-lr``: a learning-rate range test, in a short run of its own."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from holdfast.application.handlers.control_files import STOP
from holdfast.bootstrap.operations.tune_study import study_name
from holdfast.bootstrap.process.exit_codes import ExitCode
from holdfast.bootstrap.process.program import module_called
from holdfast.bootstrap.process.supervisor import HeartbeatMonitor, Supervisor
from holdfast.bootstrap.run_folder.folder import is_for_all_ranks
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.metrics_record import read_metrics
from holdfast.bootstrap.run_folder.record_file import changed_settings, read_record
from holdfast.configs.rendering import dump_settings
from holdfast.configs.settings_layers import load_settings
from holdfast.configs.strict_yaml import write_yaml
from holdfast.domain.errors import ConfigurationError, TrainingError
from holdfast.domain.fault_tolerance.restart_policy import RestartPolicy
from holdfast.domain.tuning.lr_range_test import RangeTestResult, evaluate_range_test

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_MOST_DROPPED = 100  # of recovery.health.nonfinite_limit
_LOOK_SECONDS = 1.0


@final
@dataclass(frozen=True, slots=True)
class RangeTestRequest:
    """The request for a range test: the layers of its settings, the bounds of the learning rate, and its steps."""

    files: Sequence[Path]
    overrides: Sequence[str]
    low: float = 1e-7
    high: float = 1.0
    steps: int = 100


@final
class LearningRateTest:
    """A range test in the run folder ``root``; the same request continues a test that was killed, to the same result.

    Raises ``ConfigurationError`` for settings that cannot be tested.
    """

    def __init__(self, request: RangeTestRequest, environ: Mapping[str, str] = os.environ) -> None:
        if request.low >= request.high:
            msg = f"--low is {request.low:g}, which is not below --high, {request.high:g}: exchange them"
            raise ConfigurationError(msg)
        self._request = request
        resolved = load_settings(request.files, request.overrides, environ)
        name = study_name(resolved).removesuffix("-tune")
        chosen = resolved.settings.run.dir
        self.root = Path("runs") / f"{name}-find-lr" if chosen is None else Path(f"{chosen}-find-lr")
        place = [f"run.name={name}-find-lr", f"run.dir={self.root}"]
        self._words = [*request.overrides, *place, *_words(request)]
        self.settings = load_settings(request.files, self._words, environ).settings
        self._environ = environ

    def run(self, report: Callable[[str], object]) -> int:
        """Train in a child process, which is restarted if it dies; return its exit code.

        The test ends early once the loss has diverged. Raises ``ConfigurationError`` if an earlier test in the folder
        had other settings.
        """
        self._refuse_other_test()
        if self._has_diverged():
            return ExitCode.FINISHED
        threading.Thread(target=self._stop_once_diverged, name="range test", daemon=True).start()
        recovery = self.settings.recovery
        limits = recovery.supervisor
        files = [word for path in self._request.files for word in ("--config", str(path))]
        supervisor = Supervisor(
            [sys.executable, "-m", module_called(), "train", *files, "--quiet", *self._words],
            self.root,
            RestartPolicy(
                limits.max_restarts, limits.crash_loop, limits.first_pause_seconds, limits.longest_pause_seconds
            ),
            HeartbeatMonitor(RunLayout(self.root).heartbeats, 3 * recovery.watchdog.min_seconds),
            grace_seconds=recovery.grace_seconds,
            report=report,
        )
        return supervisor.run()

    def result(self) -> RangeTestResult:
        """Return the result of the test; raises ``TrainingError`` if no learning rate lowered the loss."""
        if (loss := self._evaluated()) is None:
            request = self._request
            msg = f"the loss did not fall between the learning rates {request.low:g} and {request.high:g} in "
            msg += f"{request.steps} steps: test more steps or other bounds with --steps, --low and --high"
            raise TrainingError(msg)
        return loss

    def _evaluated(self) -> RangeTestResult | None:
        steps = [metrics for _, metrics in read_metrics(RunLayout(self.root).metrics) if "loss" in metrics]
        rates, losses = [step["lr"] for step in steps], [step["loss"] for step in steps]
        return evaluate_range_test(rates, losses, self._request.steps)

    def _has_diverged(self) -> bool:
        result = self._evaluated()
        return result is not None and result.diverged is not None

    def _stop_once_diverged(self) -> None:
        """Ask the run to stop, by a file in its folder, once the loss has diverged: nothing more is to be learned."""
        while not self._has_diverged():
            time.sleep(_LOOK_SECONDS)
        (self.root / STOP).touch()

    def _refuse_other_test(self) -> None:
        if not RunLayout(self.root).record.exists():
            return
        changes = changed_settings(read_record(self.root)["settings"], dump_settings(self.settings))
        if others := sorted(filter(is_for_all_ranks, changes)):
            old, new = changes[others[0]]
            msg = f"{others[0]} was {old!r} in the test of {self.root} and is {new!r} now: set the old test aside with "
            msg += "tune --fresh, or give this one another run.name"
            raise ConfigurationError(msg)


def _words(request: RangeTestRequest) -> list[str]:
    """Return the settings that make a run a range test: one rise, and nothing that interrupts or corrects it."""
    return [
        f"optimizer.learning_rate={write_yaml(request.high)}",
        "optimizer.schedule.kind=range_test",
        f"optimizer.schedule.floor={write_yaml(request.low / request.high)}",
        "optimizer.schedule.warmup_steps=0",
        *(f"optimizer.schedule.{name}=null" for name in ("warmup_tokens", "decay_steps", "decay_tokens", "options")),
        "optimizer.schedule.decay_shape=1-sqrt",
        f"run.budget.steps={request.steps}",
        "run.budget.tokens=null",
        "run.budget.minutes=null",
        "data.epochs=null",
        "run.report=false",
        "evaluation.every=0",
        "evaluation.at_start=false",
        "evaluation.suites=[]",
        "evaluation.prompts=[]",
        "monitors=[console, jsonl]",
        "recovery.health.spike=false",
        f"recovery.health.nonfinite_limit={_MOST_DROPPED}",
        "recovery.early_stopping.patience=0",
        "state_store.keep_best=0",
    ]
