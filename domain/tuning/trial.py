"""The trials of a study, and the rules by which they follow each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import takewhile
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.tuning.search_space import Value


class TrialState(StrEnum):
    """The state of a trial."""

    RUNNING = "running"
    """It has not ended, whether or not a process trains it now."""
    COMPLETE = "complete"
    PRUNED = "pruned"
    """It was stopped because it did worse than earlier trials."""
    FAILED = "failed"


@final
@dataclass(frozen=True, slots=True)
class TrialEnd:
    """The end of a trial: ``value`` is what the study compares, ``note`` the reason of a trial that is not complete.

    ``value`` is None if the trial failed, and the last measurement, None without one, if it was pruned. ``tokens`` are
    the tokens that it trained on.
    """

    state: TrialState
    value: float | None = None
    tokens: int = 0
    note: str = ""


@final
@dataclass(frozen=True, slots=True)
class Trial:
    """Trial ``number`` of a study, from 0; ``parameters`` are None until they have been suggested.

    ``measurements`` are its evaluations by step.
    """

    number: int
    state: TrialState = TrialState.RUNNING
    parameters: Mapping[str, Value] | None = None
    measurements: Mapping[int, float] = field(default_factory=dict)
    value: float | None = None
    tokens: int = 0
    note: str = ""

    @property
    def has_ended(self) -> bool:
        """Return whether the trial will not be trained any more."""
        return self.state is not TrialState.RUNNING


def seen_by(number: int, trials: Sequence[Trial], parallel: int) -> Sequence[Trial]:
    """Return the trials on whose results trial ``number`` depends, if ``parallel`` trials may train at once.

    They are all trials that must have ended before it begins, so that no decision depends on which of several trials
    that train at the same time ends first.
    """
    return trials[: max(0, number - parallel + 1)]


def may_begin(number: int, trials: Sequence[Trial], parallel: int) -> bool:
    """Return whether all trials that trial ``number`` depends on have ended."""
    return all(trial.has_ended for trial in seen_by(number, trials, parallel))


def best_of_trials(trials: Sequence[Trial], *, maximizes: bool = False) -> Trial | None:
    """Return the complete trial with the lowest value, or the highest; None if there is none.

    Of two trials with the same value the earlier one is better.
    """
    complete = [trial for trial in trials if trial.state is TrialState.COMPLETE and trial.value is not None]
    sign = -1.0 if maximizes else 1.0
    return min(complete, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)


def failures_in_a_row(trials: Sequence[Trial]) -> int:
    """Return the number of failed trials at the end of ``trials``."""
    return sum(1 for _ in takewhile(lambda trial: trial.state is TrialState.FAILED, reversed(trials)))


@final
@dataclass(frozen=True, slots=True)
class StudyPlan:
    """The length of a study, and the number of trials that may train at once.

    No trial begins once there are ``trials``, once the trials that it depends on have trained on ``tokens``, or once
    the last ``most_failures`` of these have failed. None sets no limit.
    """

    parallel: int = 1
    trials: int | None = None
    tokens: int | None = None
    most_failures: int = 3

    def permits(self, number: int, trials: Sequence[Trial]) -> bool:
        """Return whether trial ``number`` belongs to the study; the trials that it depends on must have ended."""
        seen = seen_by(number, trials, self.parallel)
        is_spent = self.tokens is not None and sum(trial.tokens for trial in seen) >= self.tokens
        return (
            number < (math.inf if self.trials is None else self.trials) and not is_spent and not self.has_failed(seen)
        )

    def has_failed(self, trials: Sequence[Trial]) -> bool:
        """Return whether so many of the last ``trials`` failed that another one would probably fail too."""
        return failures_in_a_row(trials) >= self.most_failures


@final
@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """The answer of a study to a trial's evaluation at ``step``: ``reason`` to end the trial, None to go on."""

    step: int
    reason: str | None = None
