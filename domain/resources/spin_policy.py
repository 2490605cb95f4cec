"""The policy by which waiting threads sleep instead of spinning while processors are contended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

SPIN_COUNT = "10000000"

_MUCH, _LITTLE = 0.2, 0.1
_LEAST_CALM, _MOST_CALM, _SOON = 6, 120, 4
_LEAST_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Seconds for which threads ``ran``, and for which they ``waited`` for a processor, all since their beginning."""

    ran: float
    waited: float


@final
class Spinning:
    """Decides at each check: a thread that spins uses up the time slice that it needs once the other threads arrive.

    Spins are brief from the check on at which threads have waited for a fifth as long as they ran, until they have
    waited for less than a tenth in ``_LEAST_CALM`` checks in a row. Each time that soon proves too early, twice as many
    are needed, up to ``_MOST_CALM``. A check counts only if threads ran and waited for at least ``_LEAST_SECONDS``
    since the last one that counted: while a run loads its parts, a wait of milliseconds is a large share of nothing.
    """

    def __init__(self) -> None:
        self._last = ThreadTimes(0.0, 0.0)
        self._is_brief = False
        self._calm = _MOST_CALM  # checks in a row without contention
        self._needed = _LEAST_CALM

    def is_brief(self, now: ThreadTimes) -> bool:
        """Return whether spins are brief until the next check; ``now`` are the totals at this check."""
        ran, waited = now.ran - self._last.ran, now.waited - self._last.waited
        if ran + waited < _LEAST_SECONDS:
            return self._is_brief
        self._last = now
        share = waited / ran if ran > 0.0 else 0.0
        if not self._is_brief:
            self._calm += 1
            if share >= _MUCH:
                was_early = self._calm <= _SOON * self._needed
                self._needed = min(_MOST_CALM, 2 * self._needed) if was_early else _LEAST_CALM
                self._is_brief, self._calm = True, 0
        else:
            self._calm = self._calm + 1 if share < _LITTLE else 0
            if self._calm >= self._needed:
                self._is_brief, self._calm = False, 0
        return self._is_brief
