"""The command ``tune``: a study whose trials are run folders, each trained by a child process."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, final
from uuid import uuid4

from holdfast.adapters.shared.device.host_memory import usable_cpus
from holdfast.adapters.shared.files.file_operations import explain, replace_file
from holdfast.application.study_runner import StudyRunner
from holdfast.bootstrap.adapter_choice.process_group import is_launched
from holdfast.bootstrap.operations.study_facts import open_study, search_rules
from holdfast.bootstrap.operations.trial_process import TrialProcess, TrialRules
from holdfast.bootstrap.process.exit_codes import ExitCode, code_of_child
from holdfast.bootstrap.process.program import module_called
from holdfast.bootstrap.run_folder.study_folder import StudyLayout, begin_study, claim_trial, hold_study
from holdfast.configs.rendering import dump_settings, render
from holdfast.configs.settings_layers import load_settings
from holdfast.configs.space_file import check_metric, read_space, words_of
from holdfast.domain.errors import ConfigurationError, StateError, TrainingError
from holdfast.domain.fault_tolerance.restart_policy import RestartPolicy
from holdfast.domain.sizes import counted
from holdfast.domain.training.metric_catalog import is_higher_better
from holdfast.domain.tuning.trial import StudyPlan, best_of_trials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.application.study_runner import StudyWatcher
    from holdfast.bootstrap.run_folder.study_folder import StudyRecord
    from holdfast.configs.settings_layers import Resolved
    from holdfast.domain.tuning.search_space import SearchSpace, Value
    from holdfast.domain.tuning.trial import Trial

_AUTOMATIC = "-tune"


@final
@dataclass(frozen=True, slots=True)
class TuneRequest:
    """The request for a study: the layers of its settings, its space, and its length.

    ``trials`` and ``tokens`` are those of the whole study, None for no limit. ``workers`` trials are trained at once
    by this process.
    """

    files: Sequence[Path]
    overrides: Sequence[str]
    space: Path
    trials: int | None = None
    tokens: int | None = None
    workers: int = 1

    def load(self, environ: Mapping[str, str], words: Sequence[str] = (), origin: str = "") -> Resolved:
        """Return the settings with further ``words``, whose origin is ``origin``."""
        return load_settings(self.files, self.overrides, environ, chosen=words, chosen_by=origin)


@final
class TuneStudy:
    """A study in its folder ``root``, ready to run; opening it checks everything that can be checked before training.

    ``report`` gets lines for a person. ``stopped_by`` is the number of the signal that stopped it, None without one.
    Raises ``ConfigurationError`` and ``StateError``.
    """

    def __init__(
        self, request: TuneRequest, report: Callable[[str], object], environ: Mapping[str, str] = os.environ
    ) -> None:
        if is_launched(environ):
            msg = "tune starts the processes itself: leave torchrun away and set distributed.processes"
            raise ConfigurationError(msg)
        self._request = request
        self._report = report
        self._environ = environ
        resolved = request.load(environ)
        self.settings, self._name = resolved.settings, study_name(resolved)
        self.root = study_folder(request, environ)
        space = read_space(request.space, request.files, request.overrides, environ)
        self._check(space)
        self._layout = StudyLayout(self.root)
        self._record = self._begin(space)
        self._lock = hold_study(self.root)
        self._plan = self._planned(space)
        self.study = open_study(self.root, self._record, self.settings.tune)
        self._devices = _devices_of_workers(request.workers, environ)
        self._claimed: list[tuple[TrialProcess, str]] = []
        self._runner: StudyRunner | None = None
        self._is_stopping = False
        self.stopped_by: int | None = None

    def run(self, watcher: StudyWatcher) -> bool:
        """Train the trials; return whether the study is over, or False if it was stopped.

        Raises ``TrainingError`` if it cannot go on, or ended because too many trials failed.
        """
        metric = self.settings.tune.metric
        self._runner = StudyRunner(
            self.study,
            self._plan,
            self._request.workers,
            self._claim,
            watcher,
            describe=lambda step, value: f"pruned at step {step}: tune.pruner ends it at {metric} {value:.6g}",
        )
        if self._is_stopping:  # before there was anything to stop
            self._runner.request_stop(self.stopped_by)
        is_over = self._runner.run()
        trials = self.study.trials()
        if is_over and self._plan.has_failed(trials):
            last = trials[-1]
            number = counted(self._plan.most_failures, "trial")
            msg = f"{number} failed in a row, and trial {last.number} says: {last.note}; see "
            msg += f"{self._layout.log(last.number)}, and begin another study with tune --fresh"
            raise TrainingError(msg)
        return is_over

    def request_stop(self, _reason: str, number: int | None = None) -> bool:
        """Ask the trials to save and end; they continue with the same command."""
        self._is_stopping, self.stopped_by = True, number
        if self._runner is not None:
            self._runner.request_stop(number)
        return True

    def close(self) -> None:
        """Release the study and its folder; may be called twice."""
        self.study.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def best(self) -> Trial | None:
        """Return the best trial, None if none is complete."""
        return best_of_trials(self.study.trials(), maximizes=is_higher_better(self.settings.tune.metric))

    def write_best(self) -> Trial | None:
        """Write the settings of the best trial as YAML for ``train --config``; return the trial, None if there is none.

        Raises ``StateError`` if the file cannot be written.
        """
        best = self.best
        if best is None or best.parameters is None:
            return None
        words = [*words_of(best.parameters), f"run.name={self._name}-best"]
        words += ["run.dir=null"] if self.settings.run.dir is not None else []
        resolved = self._request.load(self._environ, words, f"trial {best.number} of {self.root}")
        origins = {n: "default" if n.startswith("tune.") else origin for n, origin in resolved.origins.items()}
        metric, value = self.settings.tune.metric, best.value
        head = f"# The best settings of {self.root}: {metric} {value!r} in trial {best.number}.\n"
        text = head + render(replace(resolved, origins=origins, notes=()), only_changed=True)
        try:
            replace_file(self._layout.best, text.encode(), is_shared=True)
        except OSError as error:
            msg = f"{self._layout.best} cannot be written, {explain(error)}"
            raise StateError(msg) from error
        return best

    def _check(self, space: SearchSpace) -> None:
        tune, data, evaluation = self.settings.tune, self.settings.data, self.settings.evaluation
        check_metric(space, tune.metric, data.task)
        search_rules(tune)
        if self._request.trials is None and self._request.tokens is None:
            msg = "the study has no end: give --trials or --tokens"
            raise ConfigurationError(msg)
        if not (data.holdout or data.folds is not None or evaluation.sets):
            msg = "data.holdout is 0, so no trial can be evaluated: hold out a part of the data, or set evaluation.sets"
            raise ConfigurationError(msg)
        if tune.pruner != "none" and not evaluation.every:
            msg = f"tune.pruner={tune.pruner} decides at evaluations, but evaluation.every is 0: set it to a number of "
            msg += "steps, or set tune.pruner=none"
            raise ConfigurationError(msg)
        if tune.sampler == "grid" and space.uncounted:
            msg = f"tune.sampler=grid needs values that can be counted, but {space.uncounted[0]} is a range: give it "
            msg += "choices or a step"
            raise ConfigurationError(msg)

    def _begin(self, space: SearchSpace) -> StudyRecord:
        tune, settings = self.settings.tune, self.settings
        threads = max(1, usable_cpus() // self._request.workers) if self._request.workers > 1 else None
        fresh: dict[str, Any] = {
            "id": uuid4().hex,
            "seed": settings.run.seed if tune.seed is None else tune.seed,
            "parallel": tune.parallel or self._request.workers,
            "threads": None if "OMP_NUM_THREADS" in self._environ else threads,
        }
        return begin_study(self.root, dump_settings(settings), space.to_json(), fresh, parallel=tune.parallel)

    def _planned(self, space: SearchSpace) -> StudyPlan:
        trials = self._request.trials
        if self.settings.tune.sampler == "grid":
            trials = min(space.num_points, trials or space.num_points)
        return StudyPlan(self._record.parallel, trials, self._request.tokens, self.settings.tune.most_failures)

    def _claim(self, number: int) -> TrialProcess | None:
        if (claim := claim_trial(self.root, number)) is None:
            return None
        recovery = self.settings.recovery
        limits = recovery.supervisor
        rules = TrialRules(
            self.settings.tune.metric,
            self.settings.tune.objective == "best",
            RestartPolicy(
                limits.max_restarts, limits.crash_loop, limits.first_pause_seconds, limits.longest_pause_seconds
            ),
            3 * recovery.watchdog.min_seconds,
            recovery.grace_seconds,
        )
        devices = self._free_devices()
        command, environment = partial(self._command, number), self._environment_with(devices)
        process = TrialProcess(number, self._layout, claim, rules, command, environment, self._report)
        self._claimed.append((process, devices))
        return process

    def _free_devices(self) -> str:
        """Return the first GPUs that no open trial of this process has, "" if the GPUs are not divided."""
        self._claimed = [(process, devices) for process, devices in self._claimed if not process.is_closed]
        taken = {devices for _, devices in self._claimed}
        return next((devices for devices in self._devices if devices not in taken), "")

    def _command(self, number: int, parameters: Mapping[str, Value]) -> Sequence[str]:
        """Return the command that trains trial ``number``, an ordinary ``train``."""
        files = [word for path in self._request.files for word in ("--config", str(path))]
        place = [f"run.name={self._name}-trial-{number:04d}", f"run.dir={self._layout.trial(number)}"]
        own = ["train", *files, "--quiet", "--for-study", str(os.getpid())]
        words = [*self._request.overrides, *words_of(parameters), *place]
        return [sys.executable, "-m", module_called(), *own, *words]

    def _environment_with(self, devices: str) -> Mapping[str, str]:
        threads = {} if self._record.threads is None else {"OMP_NUM_THREADS": str(self._record.threads)}
        return {**self._environ, **threads, **({"CUDA_VISIBLE_DEVICES": devices} if devices else {})}


def study_name(resolved: Resolved) -> str:
    """Return the name of a study: ``run.name``, or the automatic name of a run with an ending of its own."""
    name, origin = resolved.settings.run.name, resolved.origins["run.name"]
    return name if origin != "default" else f"{name}{_AUTOMATIC}"


def study_folder(request: TuneRequest, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of a study; raises ``ConfigurationError`` if the settings are not valid."""
    resolved = request.load(environ)
    run = resolved.settings.run
    return Path("runs") / study_name(resolved) if run.dir is None else run.directory


def _devices_of_workers(workers: int, environ: Mapping[str, str]) -> list[str]:
    """Return the GPUs of each worker, as CUDA_VISIBLE_DEVICES names them; none if the GPUs are not divided."""
    if workers == 1:
        return []
    given = environ.get("CUDA_VISIBLE_DEVICES")
    numbers = sorted(path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*"))
    names = [name for name in given.split(",") if name] if given is not None else numbers
    return [",".join(names[worker::workers]) for worker in range(workers)] if len(names) >= workers else []


MISSING = '--ray needs another package: pip install "holdfast-lm[ray]"'


def tune_on_ray(arguments: Sequence[str], num_tasks: int, report: Callable[[str], object]) -> int:
    """Run ``holdfast`` with ``arguments`` in ``num_tasks`` tasks of Ray, in the current folder; return the exit code.

    The cluster is that of ``RAY_ADDRESS``, or this machine; all machines need the folder at the same path. A task whose
    machine dies is started again. Raises ``ConfigurationError`` without the extra ``ray``, and ``TrainingError`` if the
    cluster ends the tasks.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    ray.init(log_to_driver=False, include_dashboard=False, ignore_reinit_error=True)
    try:
        share = share_of_task([node["Resources"] for node in ray.nodes() if node["Alive"]], num_tasks)
        report(f"{num_tasks} tasks on Ray, each with {share['num_cpus']:g} processors and {share['num_gpus']:g} GPUs")
        task = ray.remote(max_retries=-1, **share)(drive)
        codes = ray.get([task.remote([*arguments], str(Path.cwd())) for _ in range(num_tasks)])
    except ray.exceptions.RayError as error:
        msg = f"Ray ended the search: {error}; the same command continues it"
        raise TrainingError(msg) from error
    finally:
        ray.shutdown()
    return next((code for code in codes if code), ExitCode.FINISHED)


def share_of_task(machines: Sequence[Mapping[str, float]], num_tasks: int) -> dict[str, Any]:
    """Return the processors and GPUs of each of ``num_tasks`` on ``machines``, no more than the largest one has."""
    found = {}
    for name, key, least in (("CPU", "num_cpus", 1), ("GPU", "num_gpus", 0)):
        amounts = [machine.get(name, 0.0) for machine in machines]
        found[key] = max(least, min(math.floor(sum(amounts) / num_tasks), math.floor(max(amounts, default=0.0))))
    return found


def drive(arguments: Sequence[str], folder: str) -> int:
    """Run the command on this machine of the cluster; it ends with the worker of Ray that started it."""
    command = [sys.executable, "-m", "holdfast", *arguments, "--parent", str(os.getpid())]
    return code_of_child(subprocess.run(command, cwd=folder, check=False).returncode)  # noqa: S603  this program
