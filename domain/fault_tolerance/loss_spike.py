"""When a loss has left the range of those before it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_DEVIATIONS = 1.4826  # of a normal distribution: its standard deviation, in median absolute deviations


@dataclass(frozen=True, slots=True)
class SpikePolicy:
    """Takes ``patience`` losses in a row for a spike if each stands out from the ``window`` losses before them.

    One stands out if it lies above their median by ``z`` standard deviations, which are told by the median absolute
    deviation and so not by earlier spikes, and by the share ``rise`` of the median, so that quiet losses do not spike.
    A dropped update among them counts as one that does. Nothing is said before half the window is there.
    """

    window: int = 64
    z: float = 8.0
    rise: float = 0.3
    patience: int = 3

    def begins(self, losses: Sequence[float | None]) -> int:
        """Return how many of the last losses are a spike that shows with the last of them, 0 if none does."""
        known = [loss for loss in losses[: -self.patience][-self.window :] if loss is not None]
        if 2 * len(known) < self.window:
            return 0
        limit = self.limit(known)
        late = [*takewhile(lambda loss: loss is None or loss > limit, reversed(losses))]
        return len(late) if self._shows(late) and not self._shows(late[1:]) else 0

    def _shows(self, late: Sequence[float | None]) -> bool:
        """Return whether losses that stand out, the latest first, are a spike: dropped updates alone are none."""
        return len(late) >= self.patience and any(loss is not None for loss in late)

    def limit(self, known: Sequence[float]) -> float:
        """Return above which a loss stands out from ``known`` ones."""
        middle = median(known)
        spread = _DEVIATIONS * median(abs(loss - middle) for loss in known)
        return middle + max(self.z * spread, self.rise * abs(middle))
