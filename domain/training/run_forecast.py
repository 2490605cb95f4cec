"""A forecast of the time, cost and checkpoints of a run, from the times of a short trial."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Literal

from holdfast.domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Sequence

_UNSETTLED = 3  # first steps, in which kernels are built and memory is allocated for the first time
_SECONDS_AN_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class TrialMark:
    """The time of an event of the trial in ``seconds`` since its process was started, after ``step`` complete steps.

    ``kind`` is ``start`` (before the first step), ``step``, ``evaluation`` (with its generated texts) or ``save``.
    """

    kind: Literal["start", "step", "evaluation", "save"]
    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class TrialTimes:
    """Seconds of the parts of a trial.

    ``start`` lasts until the first step begins, with what the first steps take longer than later ones; ``step`` is the
    median of the others. ``save`` is the time that training waits for a checkpoint. ``end`` follows the last step and
    its evaluation.
    """

    start: float
    first_evaluation: float
    step: float
    evaluation: float
    save: float
    end: float


@dataclass(frozen=True, slots=True)
class RunLength:
    """The numbers of steps, of evaluations after a step and of checkpoints of a run."""

    steps: int
    evaluations: int
    saves: int

    @classmethod
    def of(cls, steps: int, *, evaluation_every: int, save_every: int) -> RunLength:
        """Return the length of a run of ``steps``; the last step is always evaluated and saved; 0 is no cadence."""
        return cls(steps, _times(steps, evaluation_every), _times(steps, save_every))


@dataclass(frozen=True, slots=True)
class TimeForecast:
    """Predicted seconds of a run by part."""

    start: float
    steps: float
    evaluations: float
    saves: float
    end: float

    @property
    def total(self) -> float:
        """Return the seconds from the start of the process to its end."""
        return self.start + self.steps + self.evaluations + self.saves + self.end

    def cost(self, price_an_hour: float) -> float:
        """Return the price of the whole run if all its machines together cost ``price_an_hour``."""
        return self.total / _SECONDS_AN_HOUR * price_an_hour


def trial_times(marks: Sequence[TrialMark], ended: float) -> TrialTimes:
    """Return the times of a trial with ``marks`` in their order, whose process ended at ``ended`` seconds.

    Raises ``StateError`` if the trial took fewer than two steps.
    """
    steps = [mark for mark in marks if mark.kind == "step"]
    if len(steps) < 2:
        msg = "the trial took fewer than two steps, so no time can be measured: give the run more data or a larger "
        msg += "budget, or use --no-trial"
        raise StateError(msg)
    begin = next(mark.seconds for mark in marks if mark.kind == "start")
    busy = {mark.step for mark in marks if mark.kind in ("evaluation", "save")}
    plain = [two.seconds - one.seconds for one, two in pairwise(steps) if one.step not in busy]
    settled = plain[_UNSETTLED - 1 :] or plain or [two.seconds - one.seconds for one, two in pairwise(steps)]
    step = median(settled)
    evaluations = {mark.step: mark.seconds for mark in marks if mark.kind == "evaluation"}
    at_start = max(0.0, evaluations[0] - begin) if 0 in evaluations else 0.0
    late = steps[0].seconds - begin - at_start - step
    late += sum(seconds - step for seconds in plain[: _UNSETTLED - 1])
    ended_at = {mark.step: mark.seconds for mark in steps}
    measured = [evaluations[each] - ended_at[each] for each in evaluations if each in ended_at]
    return TrialTimes(
        start=begin + max(0.0, late),
        first_evaluation=at_start,
        step=step,
        evaluation=median(measured) if measured else at_start,
        save=_seconds_of_saves(marks, steps, evaluations, step),
        end=max(0.0, ended - max(mark.seconds for mark in marks if mark.kind in ("step", "evaluation"))),
    )


def forecast_time(times: TrialTimes, length: RunLength) -> TimeForecast:
    """Return the time of a run of ``length`` whose parts take as long as those of the trial.

    The last save of the run is part of its end, as it is in the trial.
    """
    return TimeForecast(
        start=times.start,
        steps=length.steps * times.step,
        evaluations=times.first_evaluation + length.evaluations * times.evaluation,
        saves=max(0, length.saves - 1) * times.save,
        end=times.end,
    )


def steps_within(seconds: float, times: TrialTimes, *, evaluation_every: int, save_every: int) -> int:
    """Return the steps of a run that ends within ``seconds``, at least one, if its parts take as long as in a trial.

    A run decides its ``run.budget.minutes`` by this rule, and a plan forecasts that decision.
    """
    fixed = times.start + times.first_evaluation + times.evaluation + times.end
    a_step = times.step
    a_step += times.evaluation / evaluation_every if evaluation_every else 0.0
    a_step += times.save / save_every if save_every else 0.0
    return max(1, math.floor((seconds - fixed) / a_step))


def num_checkpoints_kept(steps: int, *, every: int, newest: int, keep_every: int = 0, best: int = 0) -> int:
    """Return the largest number of checkpoints that a run of ``steps`` has at its end by its rules of retention.

    The ``best`` count as if they were none of the others.
    """
    saves = _times(steps, every)
    older = max(0, saves - newest)  # they are of multiples of ``every``, as the last save is always kept
    milestones = older * every // math.lcm(every, keep_every) if older and keep_every else 0
    return min(saves, saves - older + milestones + best)


def _seconds_of_saves(
    marks: Sequence[TrialMark], steps: Sequence[TrialMark], evaluations: dict[int, float], step: float
) -> float:
    """Return the median seconds by which a save delays the next step."""
    saved = {mark.step for mark in marks if mark.kind == "save"}
    waits = [
        max(0.0, two.seconds - evaluations.get(one.step, one.seconds) - step)
        for one, two in pairwise(steps)
        if one.step in saved
    ]
    return median(waits) if waits else 0.0


def _times(steps: int, every: int) -> int:
    return -(-steps // every) if every else 1
