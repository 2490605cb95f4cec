"""The policy of retrying after a transient error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

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
