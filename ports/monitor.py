"""The port for the metrics of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Monitor(ABC):
    """Receives the metrics of a run.

    - ``record`` accepts any names and any floats, NaN and infinities included, and steps in any order.
    - ``rewind`` removes the metrics after ``step``, also those of an earlier process, if the sink can. It is called at
      each start, with 0 for a new run, and at each roll-back, so that every step is recorded once.
    - ``close`` makes all metrics visible and may be called twice; a later ``record`` is ignored.
    - A call takes milliseconds; a monitor whose sink may stall (a terminal, a pipe, a network) buffers, and drops the
      oldest metrics rather than block the loop.
    - Called from one thread at a time. An error raised here is reported and does not stop training.
    """

    @abstractmethod
    def record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of ``step``."""

    @abstractmethod
    def rewind(self, step: int) -> None:
        """Remove the metrics of later steps."""

    @abstractmethod
    def close(self) -> None:
        """Write out all metrics and release the sink."""
