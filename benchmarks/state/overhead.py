"""Figures of a run's steps beside which it saves, against those beside which it does not."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
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

_NAMES = ("run with saves", "run with saves on a slow disk")
_WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Training:
    """Runs of ``model`` on ``material`` that save in each second period of ``period`` steps, in ``periods`` that count.

    ``slow_seconds`` are what an operation of the slow disk takes longer.
    """

    material: Material
    folder: Path
    model: Sequence[str]
    period: int
    periods: int
    slow_seconds: float


def steps_of(period: int, periods: int) -> int:
    """Return the steps that a run takes: it warms up, and each period that counts lies between two without a save."""
    return period * (_WARM_UP + 2 * periods + 1)


def measure_overhead(training: Training, *, is_trial: bool = False) -> Sequence[Figure]:
    """Measure periods with a save against those without around them, in one process, on the disk and on a slow one.

    A trial compares the losses and counts the saves: whether a save ends within its period depends on the machine.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in _NAMES}
    with ExitStack() as stack:
        runs = [stack.enter_context(_run(training, name)) for name in found]
        for turn in range(_WARM_UP + 1 + training.periods):
            for place in range(len(runs)):
                run = runs[(turn + place) % len(runs)]
                for _ in range(1 if turn <= _WARM_UP else 2):
                    found[run.name].append(run.ask("go"))
    _refuse_other_losses(found)
    counted = {name: turns[_WARM_UP:] for name, turns in found.items()}
    for name, turns in counted.items():
        _refuse_other_saves(training, name, turns)
    if is_trial:
        return []
    return [figure for name in _NAMES for figure in _figures(training, name, counted[name])]


def _figures(training: Training, name: str, turns: Sequence[Mapping[str, Any]]) -> Sequence[Figure]:
    saving, plain = turns[1::2], turns[::2]
    if not all(turn["saves"] for turn in saving):
        message = f"a save of the {name} took longer than its {training.period} steps, so their time does not count"
        raise SystemExit(message)
    seconds = [sum(turn["steps"]) for turn in plain]
    around = [(before + after) / 2 for before, after in pairwise(seconds)]
    ratio = interval_of_median([sum(turn["steps"]) / usual for turn, usual in zip(saving, around, strict=True)])
    waits, durable = ([turn["saves"][0][place] for turn in saving] for place in (0, 1))
    slowness = f", {training.slow_seconds} s for each file operation" if "slow" in name else ""
    what = f"{name}, one in {training.period} steps"
    return [
        Figure(
            f"time of a {what} / without{slowness}, median of {training.periods} periods [95 % interval]",
            "{:.3f}x [{:.3f}, {:.3f}]".format(*ratio),
            f"<= {_LIMIT}x",
            ratio[0] <= _LIMIT,
        ),
        Figure(
            f"worst step of a {what} / without",
            f"{_worst(saving):.2f} / {_worst(plain):.2f} s",
        ),
        Figure(
            f"longest wait for a save, longest until durable, {name}",
            f"{max(waits):.2f} / {max(durable):.2f} s",
        ),
    ]


def _worst(turns: Sequence[Mapping[str, Any]]) -> float:
    return max(float(step) for turn in turns for step in turn["steps"])


def _refuse_other_losses(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    losses = [[turn["losses"] for turn in turns] for turns in found.values()]
    if any(other != losses[0] for other in losses):
        message = "the runs do not learn the same, so their times do not compare"
        raise SystemExit(message)


def _refuse_other_saves(training: Training, name: str, turns: Sequence[Mapping[str, Any]]) -> None:
    if [turn["begun"] for turn in turns] != [0, 1] * training.periods + [0]:
        message = f"the {name} did not save in each second period, so its time does not count"
        raise SystemExit(message)


def _run(training: Training, name: str) -> Contender:
    overrides = [
        *training.model,
        *RUN,
        *training.material.full_rows,
        "optimizer.device=cpu",
        f"state_store.every={2 * training.period}",
        f"run.dir={training.folder / name.replace(' ', '-')}",
        f"run.budget.steps={_LONG}",
    ]
    plan = {
        "overrides": json.dumps(overrides),
        "a_turn": training.period,
        "slow_seconds": training.slow_seconds if "slow" in name else 0,
    }
    return Contender("benchmarks.state.child", name, plan)
