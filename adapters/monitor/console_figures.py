"""The figures of the live line: smoothed, and as many as fit."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, final

from holdfast.domain.sizes import shown_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.training.budget import Budget

_LONGEST_ESTIMATE = timedelta(days=9999).total_seconds()
_KEPT = 0.9
_SEPARATOR = " · "
_BARS = "▁▂▃▄▅▆▇█"
_MOST_VALUES = 64


@final
@dataclass(slots=True)
class Smoothed:
    """A mean in which each value has nine tenths of the weight of the next value."""

    total: float = 0.0
    weight: float = 0.0

    def add(self, value: float) -> None:
        """Include ``value`` in the average, unless it is NaN or infinite."""
        if math.isfinite(value):
            self.total = _KEPT * self.total + value
            self.weight = _KEPT * self.weight + 1.0

    @property
    def mean(self) -> float:
        """Return the mean, NaN before the first value."""
        return self.total / self.weight if self.weight else math.nan


@final
class Trend:
    """The course of a value since the start of the process, in at most 64 means of equally many values."""

    def __init__(self) -> None:
        self._means: list[float] = []
        self._stride = 1
        self._pending: list[float] = []

    def add(self, value: float) -> None:
        """Include ``value``, unless it is NaN or infinite."""
        if not math.isfinite(value):
            return
        self._pending.append(value)
        if len(self._pending) < self._stride:
            return
        means = [*self._means, math.fsum(self._pending) / self._stride]
        self._pending = []
        if len(means) == _MOST_VALUES:
            means = [(first + second) / 2 for first, second in zip(means[::2], means[1::2], strict=True)]
            self._stride *= 2
        self._means = means  # replaced as a whole, as the writing thread reads it

    def sparkline(self, width: int) -> str:
        """Return the course in at most ``width`` characters, the lowest mean as ▁ and the highest as █.

        Empty before the third value.
        """
        means = self._means
        if len(means) < 3:
            return ""
        size = min(width, len(means))
        cuts = [number * len(means) // size for number in range(size + 1)]
        shown = [math.fsum(means[begin:end]) / (end - begin) for begin, end in pairwise(cuts)]
        low, high = min(shown), max(shown)
        scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
        return "".join(_BARS[round((value - low) * scale)] for value in shown)


@final
class Figures:
    """The latest figures of a run, and the speed of the last minutes."""

    def __init__(self, budget: Budget | None, step: int = 0) -> None:
        self._budget = budget  # whose steps may be decided later
        self.step = step
        self.latest: Mapping[str, float] = {}
        self._samples: deque[tuple[float, float]] = deque(maxlen=120)
        self.losses = Trend()
        self._loss = Smoothed()
        self._seconds_per_token = Smoothed()
        self._evaluations: dict[int, float] = {}

    @property
    def _total_steps(self) -> int | None:
        return None if self._budget is None else self._budget.steps

    @property
    def _total_tokens(self) -> int | None:
        return None if self._budget is None else self._budget.tokens

    def rewound(self, step: int) -> Figures:
        """Return the figures of a run that continues from ``step``."""
        figures = Figures(self._budget, step)
        figures.losses = self.losses
        figures._evaluations = {at: loss for at, loss in self._evaluations.items() if at <= step}
        return figures

    def update(self, step: int, metrics: Mapping[str, float], now: float) -> None:
        """Add the figures of a step."""
        self.step = step
        self._loss.add(metrics["loss"])
        self.losses.add(metrics["loss"])
        if (speed := metrics.get("tokens_per_second", 0.0)) > 0.0:
            self._seconds_per_token.add(1.0 / speed)
        self.latest = metrics
        if self._samples and now - self._samples[-1][0] < 1.0:
            return
        if (share := self.share) is not None:
            self._samples.append((now, share))

    def measure(self, step: int, loss: float) -> None:
        """Add the loss of an evaluation."""
        self._evaluations[step] = loss

    @property
    def share(self) -> float | None:
        """Return the fraction of the budget that is spent, from 0 to 1, or None without a budget."""
        spent = [
            done / total
            for done, total in ((self.step, self._total_steps), (self.latest.get("tokens", 0), self._total_tokens))
            if total and math.isfinite(done)
        ]
        return min(max(*spent, 0.0), 1.0) if spent else None

    def __str__(self) -> str:
        return _SEPARATOR.join(part for part, _ in self._parts())

    def within(self, width: int) -> str:
        """Return the figures that fit into ``width`` characters, the less important ones left out."""
        parts = list(self._parts())
        while len(parts) > 1 and _length(parts) > width:
            parts.remove(max(parts, key=lambda part: part[1]))
        return _SEPARATOR.join(part for part, _ in parts)

    def _parts(self) -> Sequence[tuple[str, int]]:
        """Return the figures, each with its rank: the figure with the highest rank is dropped first."""
        latest = self.latest  # the writing thread reads while ``update`` replaces it
        parts = (
            (self._position(), 0),
            (self._loss_now(), 1),
            (f"lr {latest['lr']:.1e}" if "lr" in latest else "", 4),
            (self._speed(), 2),
            (self._left(), 3),
            (self._evaluated(), 5),
            (shown_size(latest["memory_bytes"]) if "memory_bytes" in latest else "", 7),
            (f"{latest['rejected']:,.0f} rejected" if latest.get("rejected") else "", 6),
        )
        return [part for part in parts if part[0]]

    def _position(self) -> str:
        position = f"step {self.step}" + (f"/{self._total_steps}" if self._total_steps else "")
        if self._total_tokens:
            position += f"{_SEPARATOR}{self.latest.get('tokens', 0):,.0f}/{self._total_tokens:,} tokens"
        return position

    def _loss_now(self) -> str:
        if "loss" not in self.latest:
            return ""
        loss = self.latest["loss"]
        return f"loss {self._loss.mean if math.isfinite(loss) else loss:.3f}"

    def _speed(self) -> str:
        seconds = self._seconds_per_token.mean
        return f"{1.0 / seconds:,.0f} tokens/s" if seconds > 0.0 else ""

    def _evaluated(self) -> str:
        evaluations = dict(self._evaluations)
        if not evaluations:
            return ""
        last, best = evaluations[max(evaluations)], min(evaluations.values())
        return f"eval {last:.3f}" + (f" (best {best:.3f})" if best < last else "")

    def _left(self) -> str:
        if len(self._samples) < 2 or self.share == 1.0:
            return ""
        (start, share), (now, spent) = self._samples[0], self._samples[-1]
        if spent <= share:
            return ""
        seconds = (1.0 - spent) * (now - start) / (spent - share)
        return f"{timedelta(seconds=round(seconds))} left" if seconds < _LONGEST_ESTIMATE else ""


def _length(parts: Sequence[tuple[str, int]]) -> int:
    return len(_SEPARATOR.join(part for part, _ in parts))
