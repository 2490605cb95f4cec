"""Whether a run that died is started again."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

RESTART_NEEDED = 75
# Finished, a user's mistake (settings, data), or stopped by SIGHUP, SIGINT, SIGUSR1 or SIGTERM: not started again.
FINAL = frozenset({0, 2, 3, 129, 130, 138, 143})


@dataclass(frozen=True, slots=True)
class Death:
    """How a start of the run ended: its exit code, and whether a newer checkpoint became durable in it."""

    code: int
    has_progressed: bool

    @property
    def is_planned(self) -> bool:
        """Return whether the run asked for a new process and had come further."""
        return self.code == RESTART_NEEDED and self.has_progressed


@dataclass(frozen=True, slots=True)
class StartAgain:
    """Start the same command again after so many ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Leave it; ``reason`` says why in words, None if nobody needs to be told."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Starts a dead run again, ``max_restarts`` times at most, with growing pauses while it does not come further.

    ``crash_loop`` deaths in a row without a new durable checkpoint end it: the next would be like the last. A run that
    asked for a new process (code 75) and had come further goes on at once, and counts for nothing.
    """

    max_restarts: int = 100
    crash_loop: int = 5
    first_seconds: float = 1.0
    longest_seconds: float = 60.0

    def after(self, deaths: Sequence[Death]) -> StartAgain | GiveUp:
        """Return what follows on ``deaths``, oldest first, of which there is one at least."""
        last = deaths[-1]
        if last.code in FINAL:
            return GiveUp()
        if last.is_planned:
            return StartAgain(0.0)
        fruitless = sum(1 for _ in takewhile(lambda death: not death.has_progressed, reversed(deaths)))
        if fruitless >= self.crash_loop:
            return GiveUp(f"it died {fruitless} times in a row without a new checkpoint, so it would die again")
        if sum(not death.is_planned for death in deaths) > self.max_restarts:
            return GiveUp(f"it was started again {self.max_restarts} times, the most that was allowed")
        growth = 2.0 ** min(max(0, fruitless - 1), 60)
        return StartAgain(min(self.longest_seconds, self.first_seconds * growth))
