"""Where figures go."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Monitor(ABC):
    """Receives the figures of a run.

    - ``record`` takes any names and any floats, not-a-number and infinities included, and steps in any order.
    - ``rewind`` forgets what was recorded after ``step``, also by an earlier process, where the sink can; it is called
      at each start, with 0 for a new run, and when a run goes back, so that every step stands there once.
    - ``close`` makes what was recorded visible and may be called twice; a later ``record`` is ignored.
    - A call takes milliseconds; one that writes to what may stall (a terminal, a pipe, a network) buffers, and drops
      the oldest rather than block the loop.
    - Called from one thread at a time. An error raised here is reported and does not stop training.
    """

    @abstractmethod
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the figures of ``step``."""

    @abstractmethod
    def rewind(self, step: int) -> None:
        """Forget the figures of later steps."""

    @abstractmethod
    def close(self) -> None:
        """Finish."""
