"""Figures of runs that save against the same run that does not."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.report import Figure, interval_of_median
from benchmarks.train.speed import RUN
from benchmarks.turns import Contender

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.train.material import Material

_LIMIT = 1.035
_LONG = 1_000_000

_NAMES = ("run", "run with saves", "run with saves on a slow disk")


@dataclass(frozen=True, slots=True)
class Training:
    """Runs of ``model`` on ``material``, a save each ``period`` steps, for so many ``periods`` after a warm-up.

    ``slow_seconds`` are what an operation of the slow disk takes longer.
    """

    material: Material
    folder: Path
    model: Sequence[str]
    period: int
    periods: int
    slow_seconds: float


def measure_overhead(training: Training) -> Sequence[Figure]:
    """Measure the same run without saves, with them, and with them on a slow disk, a period at a time."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in _NAMES}
    with ExitStack() as stack:
        runs = [stack.enter_context(_run(training, name)) for name in found]
        for run in runs:
            run.ask("go")  # it warms up, and a save is due at its end
        for turn in range(training.periods):
            for place in range(len(runs)):
                run = runs[(turn + place) % len(runs)]
                found[run.name].append(run.ask("go"))
            _refuse_other_losses({name: answers[-1] for name, answers in found.items()})
    _, *saving = _NAMES
    return [figure for name in saving for figure in _figures(training, name, found)]


def _figures(training: Training, name: str, found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Sequence[Figure]:
    saves = [save for answer in found[name] for save in answer["saves"]]
    begun = sum(answer["begun"] for answer in found[name])
    if begun < training.periods:
        message = f"the {name} made {begun} saves in {training.periods} periods, so its time does not count"
        raise SystemExit(message)
    pairs = zip(found[name], found["run"], strict=True)
    ratio = interval_of_median([sum(ours["steps"]) / sum(theirs["steps"]) for ours, theirs in pairs])
    worst, usual = (max(max(answer["steps"]) for answer in found[way]) for way in (name, "run"))
    slowness = f", {training.slow_seconds} s for each file operation" if "slow" in name else ""
    what = f"{name}, one in {training.period} steps"
    return [
        Figure(
            f"time of a {what} / without{slowness}, median of {training.periods} periods [95 % interval]",
            "{:.3f}x [{:.3f}, {:.3f}]".format(*ratio),
            f"<= {_LIMIT}x",
            ratio[0] <= _LIMIT,
        ),
        Figure(f"worst step of a {what} / without", f"{worst:.2f} / {usual:.2f} s"),
        Figure(
            f"longest wait for a save, longest until durable, {name}",
            " / ".join(f"{max((save[place] for save in saves), default=float('nan')):.2f}" for place in (0, 1)) + " s",
        ),
    ]


def _refuse_other_losses(answers: Mapping[str, Mapping[str, Any]]) -> None:
    if any(answer["losses"] != answers["run"]["losses"] for answer in answers.values()):
        message = "a run that saves does not learn the same as one that does not, so their times do not compare"
        raise SystemExit(message)


def _run(training: Training, name: str) -> Contender:
    every = training.period if "saves" in name else 0
    overrides = [
        *training.model,
        *RUN,
        *training.material.full_rows,
        "optimizer.device=cpu",
        f"state_store.every={every}",
        f"run.dir={training.folder / name.replace(' ', '-')}",
        f"run.budget.steps={_LONG}",
    ]
    plan = {
        "overrides": json.dumps(overrides),
        "a_turn": training.period,
        "slow_seconds": training.slow_seconds if "slow" in name else 0,
    }
    return Contender("benchmarks.state.child", name, plan)
