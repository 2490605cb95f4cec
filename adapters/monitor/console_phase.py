"""The phase of a run that the console shows between steps: its share, rate and time left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Self, final

from holdfast.domain.phase import BYTES, Amount
from holdfast.domain.sizes import shown_size

_SOON = 2.0
"""Seconds after which the rate and the time left are shown."""
_LONGEST_STILL = 3.0
"""Seconds without progress after which they are hidden, unless progress takes longer."""
_LONGEST_ESTIMATE = timedelta(days=999).total_seconds()


@final
@dataclass(frozen=True, slots=True)
class ShownPhase:
    """The activity of a run since ``began``, in seconds of the console's clock.

    ``now`` is the completed part, as a fraction or an amount, None if unknown, since ``changed``; ``first`` is the one
    at the beginning. While ``now`` stands still for long, no rate and no time left are shown.
    """

    name: str
    began: float
    first: float | Amount | None
    now: float | Amount | None
    changed: float
    longest: float = 0.0
    """The longest time between two changes of ``now``, in seconds."""

    def at(self, part: float | Amount | None, clock: float) -> Self:
        """Return the same phase with the part that is completed at ``clock``."""
        if part == self.now:
            return self
        return replace(self, now=part, changed=clock, longest=max(self.longest, clock - self.changed))

    @property
    def share(self) -> float | None:
        """Return the completed fraction, from 0 to 1, None if it is unknown."""
        return self.now.share if isinstance(self.now, Amount) else self.now

    def text(self, clock: float) -> str:
        """Return the phase at ``clock`` as a line."""
        share, seconds = self.share, clock - self.began
        parts = [self.name, *([] if share is None else [f"{share:.0%}"]), f"{seconds:.0f} s"]
        if seconds > _SOON and clock - self.changed <= max(_LONGEST_STILL, 2.0 * self.longest):
            parts += self._speed(seconds)
        return " · ".join(parts)

    def _speed(self, seconds: float) -> list[str]:
        """Return the rate, if an amount is known, and the time left, if a share is known."""
        parts, share = [], self.share
        if isinstance(self.now, Amount):
            rate = (self.now.done - _done(self.first)) / seconds
            parts += [f"{with_unit(rate, self.now.unit)}/s"] if rate > 0 else []
        if share:
            begun = _share(self.first)
            left = seconds * (1 - share) / (share - begun) if share > begun else _LONGEST_ESTIMATE
            parts += [f"{_time(left)} left"] if left < _LONGEST_ESTIMATE else []
        return parts


def with_unit(number: float, unit: str) -> str:
    """Return ``number`` with its ``unit``, bytes as ``shown_size`` does."""
    if unit == BYTES:
        return shown_size(number)
    return f"{number:,.0f} {unit}" if number >= 10 else f"{number:,.1f} {unit}"


def _done(part: float | Amount | None) -> float:
    return part.done if isinstance(part, Amount) else 0.0


def _share(part: float | Amount | None) -> float:
    return (part.share if isinstance(part, Amount) else part) or 0.0


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else str(timedelta(seconds=round(seconds)))
