"""The policy of restarting a run that died."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random


class Ending(Enum):
    """The ends of a start of the run, by their consequence for a restart."""

    FINAL = "final"
    """It finished, failed by a user's mistake (settings, data), or was stopped by a signal: not restarted."""
    RESTART_NEEDED = "restart-needed"
    """It asked for a new process."""
    CRASHED = "crashed"
    """It ended in any other way."""


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """The end of a start of the run, and whether a newer checkpoint became durable in it."""

    ending: Ending
    has_progressed: bool

    @property
    def is_planned(self) -> bool:
        """Return whether the run asked for a new process and had made progress."""
        return self.ending is Ending.RESTART_NEEDED and self.has_progressed


@dataclass(frozen=True, slots=True)
class StartAgain:
    """The verdict to start the same command again after ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The verdict not to restart; ``reason`` is a clause to report, or None if there is nothing to report."""

    reason: str | None = None


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Restarts a dead run at most ``max_restarts`` times, with growing pauses while it makes no progress.

    It gives up after ``crash_loop`` deaths in a row without a new durable checkpoint. A run that asked for a new
    process and had made progress is restarted at once, and is not counted.
    """

    max_restarts: int = 100
    crash_loop: int = 5
    first_seconds: float = 1.0
    longest_seconds: float = 60.0

    def after(self, deaths: Sequence[ProcessExit]) -> StartAgain | GiveUp:
        """Return the verdict after ``deaths`` (oldest first, at least one)."""
        last = deaths[-1]
        if last.ending is Ending.FINAL:
            return GiveUp()
        if last.is_planned:
            return StartAgain(0.0)
        fruitless = sum(1 for _ in takewhile(lambda death: not death.has_progressed, reversed(deaths)))
        if fruitless >= self.crash_loop:
            return GiveUp(f"it died {fruitless} times in a row without a new checkpoint, so another start would fail")
        if sum(not death.is_planned for death in deaths) > self.max_restarts:
            return GiveUp(f"it was restarted {self.max_restarts} times, which is the limit")
        growth = 2.0 ** min(max(0, fruitless - 1), 60)
        return StartAgain(min(self.longest_seconds, self.first_seconds * growth))


_MOST_DOUBLINGS = 64  # beyond it a float could overflow, and every limit is long reached


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The pauses between attempts, and the deadline; all in seconds.

    The pause before retry ``n``, from 0, is drawn uniformly from 0 to ``first_delay * factor ** n``, capped at
    ``max_delay``, so that readers which failed together do not retry together ("full jitter"). No attempt starts
    ``deadline`` or more after the first one. Raises ``ValueError`` for a policy that would never give up.
    """

    first_delay: float = 0.5
    factor: float = 2.0
    max_delay: float = 20.0
    deadline: float = 120.0

    def __post_init__(self) -> None:
        if not (0 <= self.first_delay <= self.max_delay and self.factor >= 1 and 0 < self.deadline < float("inf")):
            msg = f"invalid retry policy {self}: delays and deadline are seconds, and the factor is 1 or more"
            raise ValueError(msg)

    def pause(self, retry: int, rng: Random) -> float:
        """Return the seconds to wait before the retry of that number, from 0."""
        return rng.uniform(0, min(self.max_delay, self.first_delay * self.factor ** min(retry, _MOST_DOUBLINGS)))


_SHARE_FOR_THE_STEP = 0.5


@dataclass(frozen=True, slots=True)
class GracePeriod:
    """The ``seconds`` between a signal and the forced end of the process: half for the step, half for its save."""

    seconds: float = 30.0

    def is_short(self, waited: float) -> bool:
        """Return whether, ``waited`` seconds after the signal, the rest is needed to save the step before."""
        return waited >= self.seconds * _SHARE_FOR_THE_STEP
