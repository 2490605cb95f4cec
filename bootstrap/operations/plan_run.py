"""The plan of a run: its size, memory, disk, time and cost, by formulas and by a trial of a few steps."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, final

from holdfast.bootstrap.adapter_choice.ports import Ports
from holdfast.bootstrap.adapter_choice.process_group import is_launched
from holdfast.bootstrap.operations.open_preparation import begun_run
from holdfast.bootstrap.operations.plan_trial import MODULE, PlanTrial
from holdfast.bootstrap.operations.prepare_data import prepare_ahead
from holdfast.bootstrap.operations.show_data import rows_of_data
from holdfast.bootstrap.process.child_run import ChildFailedError, room_beside, run_in_child
from holdfast.bootstrap.process.launch import processes_to_start
from holdfast.bootstrap.process.printing import report_line
from holdfast.bootstrap.process.program import called_as
from holdfast.bootstrap.process.signals import stopping_on_signals
from holdfast.bootstrap.stages.choose.hardware import memory_limit_of
from holdfast.bootstrap.stages.choose.memory_check import estimate_from_settings, refuse_counted, refuse_from_settings
from holdfast.bootstrap.stages.choose.stage import choose_model, choose_sizes
from holdfast.bootstrap.stages.identify.data_form import free_bytes
from holdfast.bootstrap.stages.identify.stage import find_data, identify
from holdfast.bootstrap.stages.open_run.hub_choice import refuse_offline
from holdfast.bootstrap.stages.open_run.screen import phases_shown
from holdfast.bootstrap.stages.request import Request
from holdfast.configs.sections.distributed import (
    AutoDistributedSettings,
    RayDistributedSettings,
    SingleSettings,
)
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.run_forecast import (
    RunLength,
    TimeForecast,
    TrialMark,
    forecast_time,
    num_checkpoints_kept,
    steps_within,
    trial_times,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.data.mixture import Mixture
    from holdfast.domain.training.run_forecast import TrialTimes

_PREFIX = ".plan-"
_LARGEST_OF_TWO_BYTES = 1 << 16  # vocabulary


@final
@dataclass(frozen=True, slots=True)
class PlanRequest:
    """The settings to plan for, with the files and words that they come from, and the choices of the command.

    ``steps`` is the least number of steps of the trial, 0 for none; ``price`` that of all machines for an hour.
    """

    settings: TrainSettings
    config: Sequence[Path]
    arguments: Sequence[str]
    steps: int
    price: float | None = None


@final
@dataclass(frozen=True, slots=True)
class RunPlanner:
    """Plans the run of a request: ``plan`` returns its figures by group."""

    request: PlanRequest

    def plan(self, *, is_quiet: bool) -> dict[str, Any]:
        """Return the figures of the run, all of them measured or computed from shapes.

        Tokens are made where ``train`` looks for them; all else is deleted. Raises ``ConfigurationError`` and other
        errors of `train` before that for a run that cannot work, and ``ChildFailedError`` if the trial failed.
        """
        self._check()
        refuse_offline(self.request.settings)
        settings, ranks = self.request.settings, planned_ranks(self.request.settings)
        notes = [refuse_from_settings(settings, ranks), note_on_ranks(settings)]
        settings, _, begun = begun_run(settings)
        with phases_shown(is_quiet=is_quiet) as show:
            report, ports = partial(_note, is_quiet=is_quiet), Ports(settings, {})
            request = Request(settings, settings.run.directory, ports, report, show, begun=begun)
            request = choose_sizes(request, ranks=ranks)
            settings, (hardware, factory), found = request.settings, choose_model(request), find_data(request)
            tokenizer = identify(found, found.data).tokenizer
            device = hardware.get("optimizer.device")
            notes += [refuse_counted(settings, factory, tokenizer, num_ranks=ranks, device=device)]
            number = factory.count_parameters(
                vocabulary_size=tokenizer.vocabulary_size, end_of_text=tokenizer.end_of_text
            )
            mode = found.mode
        known = {
            "mode": mode,
            "shares": _shares(found.mixture),
            "free_bytes": free_bytes(settings.run.directory),
            "token_bytes": None,
            "notes": [note for note in (*notes, _uncounted(settings)) if note],
        }
        if not self.request.steps:
            return self._by_formulas(settings, known, number, ranks, hardware, tokenizer.vocabulary_size)
        if mode == "cache" and not settings.data.are_tokens:
            tokens = prepare_ahead(self.request.settings, is_quiet=is_quiet).prepared.tokens
            known["token_bytes"] = tokens * (2 if tokenizer.vocabulary_size <= _LARGEST_OF_TWO_BYTES else 4)
        return self._by_trial(settings, known)

    def _check(self) -> None:
        settings = self.request.settings
        if not self.request.steps:
            return
        if is_launched() or not isinstance(settings.distributed, AutoDistributedSettings):
            msg = "plan starts the processes of its trial itself: leave torchrun away and set distributed.kind=auto, "
            msg += "or plan without a trial (--no-trial)"
            raise ConfigurationError(msg)

    def _by_trial(self, settings: TrainSettings, known: Mapping[str, Any]) -> dict[str, Any]:
        request = self.request
        with (
            stopping_on_signals(lambda _reason, _number: False),
            room_beside(settings.run.directory, _PREFIX, keep=False) as room,
        ):
            config = [str(path) for path in request.config]
            trial = PlanTrial(config, list(request.arguments), str(room / "trial"), request.steps)
            began = time.time()
            code, log = run_in_child([sys.executable, "-m", MODULE, trial.to_argument()], room / "log")
            seconds = time.time() - began
            if code:
                sys.stderr.write(log)
                raise ChildFailedError(code)
            facts = json.loads(trial.facts(0).read_text(encoding="utf-8"))
            memory = [json.loads(trial.facts(rank).read_text(encoding="utf-8")) for rank in range(facts["ranks"])]
        marks = [TrialMark(kind, step, at - began) for kind, step, at in facts["marks"]]
        times = trial_times(marks, seconds)
        taken = max(mark.step for mark in marks)
        steps = planned_steps(settings, facts["tokens"] / taken, times, facts["samples"])
        length = RunLength.of(steps, **cadence_of(settings))
        forecast = forecast_time(times, length)
        a_metric = facts["metrics_bytes"] / taken
        return {
            "model": {name: facts[name] for name in ("parameters", "trained_parameters", "precision", "device")},
            "memory": {
                "ranks": facts["ranks"],
                "formula_bytes": facts["formula"],
                "peak_bytes": [each["peak_bytes"] for each in memory],
                "limit_bytes": [each["limit_bytes"] for each in memory],
            },
            "step": {name: facts[name] for name in ("rows", "length", "micro_batch")},
            "data": _data_of(settings, known, steps, facts["tokens"] / _rows(settings, taken, facts["samples"]), facts),
            "disk": _disk(settings, known, steps, facts["checkpoint_bytes"], a_metric * steps),
            "time": _time(forecast, length, times.step, taken),
            "cost": None if request.price is None else _cost(forecast, request.price),
            "sample": facts["sample"],
            "notes": known["notes"],
        }

    def _by_formulas(
        self,
        settings: TrainSettings,
        known: Mapping[str, Any],
        number: int | None,
        ranks: int,
        hardware: Mapping[str, str],
        vocabulary_size: int,
    ) -> dict[str, Any]:
        rows, length = settings.optimizer.num_rows, settings.data.row_length
        micro_batch = settings.optimizer.fixed_micro_batch
        device = hardware.get("optimizer.device")
        estimate = estimate_from_settings(
            settings,
            hardware,
            num_ranks=ranks,
            num_parameters=number,
            vocabulary_size=vocabulary_size,
            rows=micro_batch or -(-rows // ranks),
        )
        steps = planned_steps(settings, rows * length, None)
        is_text = not settings.data.are_tokens
        with phases_shown(is_quiet=True) as show:
            sample = rows_of_data(settings, 1, lambda _: None, show)[0] if is_text else None
        return {
            "model": {"parameters": number, "trained_parameters": None, "precision": None, "device": device},
            "memory": {
                "ranks": ranks,
                "formula_bytes": None if estimate is None else asdict(estimate),
                "peak_bytes": None,
                "limit_bytes": [memory_limit_of(device)] * ranks,
            },
            "step": {"rows": rows, "length": length, "micro_batch": micro_batch},
            "data": _data_of(settings, known, steps, length, {"rows_there": None, "samples": None}),
            "disk": _disk(settings, known, steps, None, None),
            "time": None,
            "cost": None,
            "sample": None if sample is None else [sample],
            "notes": [*known["notes"], *limits_without_trial(settings)],
        }


def refuse_full_disk(plan: Mapping[str, Any]) -> None:
    """Raise ``ConfigurationError`` if the checkpoints of ``plan`` do not fit on the disk."""
    disk = plan["disk"]
    if disk["peak_bytes"] is not None and disk["peak_bytes"] > disk["free_bytes"]:
        msg = f"the checkpoints take {disk['peak_bytes']:,} bytes at once, but the disk of run.dir has "
        msg += f"{disk['free_bytes']:,} free: lower state_store.keep, or name another run.dir"
        raise ConfigurationError(msg)


def _data_of(
    settings: TrainSettings, known: Mapping[str, Any], steps: int, tokens_a_row: float, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the tokens and the epochs of ``steps``, of which the last one may have fewer rows."""
    rows, there = _rows(settings, steps, facts["samples"]), facts["rows_there"]
    return {
        "mode": known["mode"],
        "steps": steps,
        "tokens": round(rows * tokens_a_row),
        "tokens_there": there and there * settings.data.row_length,
        "epochs": rows / there if there else None,
        "shares": known["shares"],
    }


def _rows(settings: TrainSettings, steps: int, samples: int | None) -> int:
    rows = steps * settings.optimizer.num_rows
    return rows if samples is None else min(rows, samples)


def _disk(
    settings: TrainSettings, known: Mapping[str, Any], steps: int, checkpoint: int | None, metrics: float | None
) -> dict[str, Any]:
    store = settings.state_store
    kept = num_checkpoints_kept(
        steps, every=store.every_steps, newest=store.keep, keep_every=store.keep_every, best=store.keep_best
    )
    return {
        "token_bytes": known["token_bytes"],
        "checkpoint_bytes": checkpoint,
        "checkpoints_kept": kept,
        "peak_bytes": None if checkpoint is None else (kept + 1) * checkpoint,  # a new one comes before an old one goes
        "metrics_bytes": None if metrics is None else round(metrics),
        "free_bytes": known["free_bytes"],
    }


def _uncounted(settings: TrainSettings) -> str | None:
    """Return a note on the checkpoints that are kept by the hour, None without any."""
    note = "checkpoints of state_store.keep_hours are not counted, as their number depends on the times of the saves"
    return note if settings.state_store.keep_hours else None


def _time(forecast: TimeForecast, length: RunLength, step: float, taken: int) -> dict[str, Any]:
    seconds = {name: round(value, 3) for name, value in asdict(forecast).items()}
    counts = {"evaluations_taken": length.evaluations, "saves_taken": length.saves}
    return {"seconds": round(forecast.total, 3), "a_step": step, "trial_steps": taken, **counts, "parts": seconds}


def _cost(forecast: TimeForecast, price: float) -> dict[str, float]:
    return {"price_per_hour": price, "total": round(forecast.cost(price), 4)}


def _shares(mixture: Mixture) -> list[dict[str, Any]] | None:
    """Return the share of each source from each stage of a mixture on; None for a single source."""
    if mixture.num_sources == 1:
        return None
    names = mixture.names or [str(number) for number in range(mixture.num_sources)]
    return [
        {
            "from_row": stage.start,
            "sources": {name: weight / sum(stage.weights) for name, weight in zip(names, stage.weights, strict=True)},
        }
        for stage in mixture.stages
    ]


def _note(line: str, *, is_quiet: bool) -> None:
    if not is_quiet:
        report_line(line)


_SECONDS_A_MINUTE = 60.0


def cadence_of(settings: TrainSettings) -> dict[str, int]:
    """Return the numbers of steps between two evaluations and between two checkpoints."""
    return {"evaluation_every": settings.evaluation.every, "save_every": settings.state_store.every_steps}


def planned_steps(
    settings: TrainSettings, tokens_a_step: float, times: TrialTimes | None, samples: int | None = None
) -> int:
    """Return the steps after which the run ends by its budget or its data.

    ``times`` are those of a trial, without which minutes set no limit; ``samples`` are the rows of the data in all
    their epochs, None if they have no end or if it is not known. Raises ``ConfigurationError`` if no limit is known.
    """
    budget = settings.run.budget
    limits = [] if budget.steps is None else [budget.steps]
    if budget.minutes is not None and times is not None:
        limits.append(steps_within(budget.minutes * _SECONDS_A_MINUTE, times, **cadence_of(settings)))
    if budget.tokens is not None:
        limits.append(max(1, -int(-budget.tokens // max(tokens_a_step, 1))))
    if samples is not None:
        limits.append(max(1, -(-samples // settings.optimizer.num_rows)))
    if not limits:
        given = "data.epochs" if budget.minutes is None else "run.budget.minutes"
        msg = f"{given} alone becomes a number of steps only in a trial: leave --no-trial out, or set run.budget.steps"
        raise ConfigurationError(msg)
    return min(limits)


def limits_without_trial(settings: TrainSettings) -> Iterator[str]:
    """Yield a sentence for each setting that may end the run earlier than ``planned_steps`` without a trial says."""
    if (minutes := settings.run.budget.minutes) is not None:
        yield f"run.budget.minutes={minutes:g} may end the run earlier: its steps are not known without a trial"
    if (epochs := settings.data.epochs) is not None:
        yield f"data.epochs={epochs} may end the run earlier: the size of the data is not known without a trial"


def planned_ranks(settings: TrainSettings, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of ranks of a run of ``settings``, the largest one if it may change.

    Raises ``ConfigurationError`` if another launcher decides it and ``environment`` does not have it.
    """
    distributed = settings.distributed
    if isinstance(distributed, SingleSettings):
        return 1
    if is_launched(environment):
        return int(environment["WORLD_SIZE"])
    if isinstance(distributed, AutoDistributedSettings):
        return processes_to_start(settings)
    if isinstance(distributed, RayDistributedSettings):
        return distributed.workers[1]
    if "WORLD_SIZE" not in environment:
        msg = f"with distributed.kind={distributed.kind} another launcher decides the number of processes: set "
        msg += f"WORLD_SIZE to it, as in WORLD_SIZE=8 {' '.join(called_as())} plan --no-trial"
        raise ConfigurationError(msg)
    return 1


def note_on_ranks(settings: TrainSettings) -> str | None:
    """Return a sentence about a run whose number of ranks may change, else None."""
    distributed = settings.distributed
    if not isinstance(distributed, RayDistributedSettings) or distributed.workers[0] == distributed.workers[1]:
        return None
    fewest, most = distributed.workers
    return f"planned for {most} workers of Ray; with {fewest}, each may need more memory, and a step takes longer"
