"""The length of a planned run: the steps of its budget and of its data, as far as they are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.run_forecast import steps_within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.run_forecast import TrialTimes

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
