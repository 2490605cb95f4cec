"""Cadences: in steps, and in seconds that follow what checkpoints cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHORTEST, _LONGEST = 10.0, 600.0  # seconds
_SHARE_OF_AGE = 0.05  # of the time that a run has taken: what a failure costs at most
_MOST_WAITING = 0.01  # of the time, by training for saves
_MOST_WRITING = 0.2  # of the time, by the disk beside training
_AGES = 1e12  # more than any process lives


@dataclass(frozen=True, slots=True)
class Cadence:
    """Due at each multiple of ``steps`` above 0; never due if ``steps`` is 0."""

    steps: int

    def is_due(self, step: int) -> bool:
        """Return whether it is due after ``step`` complete steps."""
        return self.steps > 0 and step > 0 and step % self.steps == 0


@dataclass(frozen=True, slots=True)
class SaveCost:
    """What a checkpoint cost: ``stall`` seconds of training, and ``writing`` seconds until it was durable."""

    stall: float = 0.0
    writing: float = 0.0


def seconds_between_saves(age: float, cost: SaveCost, between_failures: float | None = None) -> float:
    """Return the seconds from one checkpoint to the next, ``age`` seconds after the run was started.

    A failure costs at most a twentieth of the time so far, ten seconds at least and ten minutes at most. With the mean
    seconds ``between_failures`` the interval is no longer than that which costs least (Young, A first order
    approximation to the optimum checkpoint interval, 1974). Saves that cost much are rarer in any case: training waits
    for at most a hundredth of the time, and the disk writes for at most a fifth.
    """
    wanted = min(max(_SHORTEST, age * _SHARE_OF_AGE), _LONGEST)
    if between_failures is not None:
        wanted = min(wanted, max(1.0, math.sqrt(2 * cost.stall * between_failures)))
    return max(wanted, cost.stall / _MOST_WAITING, cost.writing / _MOST_WRITING)


def mean_seconds(recorded: Iterable[object]) -> float | None:
    """Return the mean of those of the ``recorded`` values that are lengths of time, None if none is."""
    known = [
        value
        for value in recorded
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _AGES
    ]
    return fmean(known) if known else None
