"""Learning-rate schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.domain.training.budget import Budget
    from holdfast.domain.training.step_outcome import Progress

WSD_DECAY = 0.1
"""Default share of the budget in which ``WarmupStableDecay`` decays (MiniCPM, arXiv 2404.06395)."""


class Schedule(Protocol):
    """A learning rate for each moment of a run: a pure function of progress.

    It has no state to save, so a resumed run follows the same curve.
    """

    def at(self, progress: Progress) -> float:
        """Return the learning rate of the step that follows ``progress``."""
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """A part of training, measured in optimizer steps or in tokens."""

    length: int
    unit: Literal["steps", "tokens"] = "steps"

    def position_of(self, progress: Progress) -> int:
        """Return the progress of the run in this unit."""
        return progress.step if self.unit == "steps" else progress.tokens

    def limit_of(self, budget: Budget) -> int | None:
        """Return the end of the run in this unit; None if ``budget`` sets no limit in it."""
        return budget.steps if self.unit == "steps" else budget.tokens


def half_cosine(decayed: float) -> float:
    """Return the height of a half cosine from 1 at 0 to 0 at 1 (SGDR without restarts, arXiv 1608.03983)."""
    return 0.5 * (1.0 + math.cos(math.pi * decayed))


def straight_line(decayed: float) -> float:
    """Return the height of a straight line from 1 at 0 to 0 at 1."""
    return 1.0 - decayed


def one_minus_sqrt(decayed: float) -> float:
    """Return one minus the square root: steep at first, better than a line in arXiv 2405.18392."""
    return 1.0 - math.sqrt(decayed)


@dataclass(frozen=True, slots=True)
class Constant:
    """Linear warm-up to ``peak``, then a constant rate."""

    peak: float
    warmup: Span

    def at(self, progress: Progress) -> float:
        """Return the learning rate of the step that follows ``progress``."""
        return self.peak * _warmed_up(self.warmup, progress)


@dataclass(frozen=True, slots=True)
class WarmupDecay:
    """Linear warm-up to ``peak``, followed immediately by a decay to ``floor`` of the form ``shape``.

    The decay lasts until the end of a budget, or for a span after which the rate stays at ``floor``. If the decay and
    the warm-up have different units, steps of the warm-up are assumed to have as many tokens as later steps.
    """

    peak: float
    warmup: Span
    floor: float
    shape: Callable[[float], float]
    decay: Budget | Span

    def at(self, progress: Progress) -> float:
        """Return the learning rate of the step that follows ``progress``."""
        if self.warmup.position_of(progress) < self.warmup.length:
            return self.peak * _warmed_up(self.warmup, progress)
        return self.floor + (self.peak - self.floor) * self.shape(min(1.0, self._decayed(progress)))

    def _decayed(self, progress: Progress) -> float:
        share = Fraction(self.warmup.length, max(1, self.warmup.position_of(progress)))  # the warm-up's share so far
        if isinstance(self.decay, Span):
            position = self.decay.position_of(progress)
            return float((position - position * share) / self.decay.length)
        spent = self.decay.fraction_spent_by(progress)
        warmed_up = spent * float(share)  # warm-up's share of the budget
        return (spent - warmed_up) / (1.0 - warmed_up) if warmed_up < 1.0 else 1.0


@dataclass(frozen=True, slots=True)
class WarmupStableDecay:
    """Linear warm-up to ``peak``, a constant rate, and a decay to ``floor`` in the last part of the run (WSD).

    ``decay`` is the length of the last part, up to the end of ``budget``; None means the fraction ``WSD_DECAY`` of the
    budget. Raises ``ValueError`` if ``decay`` is given and ``budget`` has another unit or two limits; minutes and
    epochs become steps. Source: MiniCPM, arXiv 2404.06395.
    """

    peak: float
    warmup: Span
    floor: float
    shape: Callable[[float], float]
    budget: Budget
    decay: Span | None = None

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a decay whose beginning is undefined."""
        if self.decay is None or (self.budget.is_undecided and self.decay.unit == "steps"):
            return
        is_plain = self.budget.steps is None or self.budget.tokens is None
        if not (is_plain and self.decay.limit_of(self.budget)):
            msg = f"a decay in {self.decay.unit} needs a budget in {self.decay.unit} alone"
            raise ValueError(msg)

    def at(self, progress: Progress) -> float:
        """Return the learning rate of the step that follows ``progress``."""
        decayed = min(1.0, max(0.0, 1.0 - self._remaining(progress)))
        rate = self.floor + (self.peak - self.floor) * self.shape(decayed)
        return min(rate, self.peak * _warmed_up(self.warmup, progress))

    def is_decaying_at(self, progress: Progress) -> bool:
        """Return whether the step before ``progress`` belongs to the decay."""
        return self._remaining(progress) < 1.0

    def _remaining(self, progress: Progress) -> float:
        if self.decay is None:
            return (1.0 - self.budget.fraction_spent_by(progress)) / WSD_DECAY
        end = self.decay.limit_of(self.budget) or 0
        return (end - self.decay.position_of(progress)) / self.decay.length


@dataclass(frozen=True, slots=True)
class RangeTest:
    """A geometric rise from ``floor``, above 0, to ``peak`` at the end of ``budget``, after a linear warm-up.

    It is the schedule of the learning-rate range test: the loss falls fastest near a good learning rate. Source: Smith,
    Cyclical Learning Rates, arXiv 1506.01186.
    """

    peak: float
    warmup: Span
    floor: float
    budget: Budget

    def at(self, progress: Progress) -> float:
        """Return the learning rate of the step that follows ``progress``."""
        rate = self.floor * math.pow(self.peak / self.floor, self.budget.fraction_spent_by(progress))
        return rate * _warmed_up(self.warmup, progress)


def _warmed_up(warmup: Span, progress: Progress) -> float:
    # The next step counts, so that the first has a rate above 0; its number of tokens is not known yet.
    position = warmup.position_of(progress) + (warmup.unit == "steps")
    return min(1.0, position / warmup.length) if warmup.length else 1.0
