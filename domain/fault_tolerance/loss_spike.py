"""The detection of spikes in the training loss."""

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
    """Detects a spike: ``num_losses`` losses in a row, each of which stands out from the ``window`` losses before.

    A loss stands out if it exceeds their median by ``zscore`` robust standard deviations (estimated from the median
    absolute deviation, which earlier spikes do not inflate) and by the fraction ``min_rise`` of the median, so that
    small changes of very quiet losses do not count. A dropped update counts as a loss that stands out. There is no
    spike before half of the window is filled.
    """

    window: int = 64
    zscore: float = 8.0
    min_rise: float = 0.3
    num_losses: int = 3

    def begins(self, losses: Sequence[float | None]) -> int:
        """Return the length of the spike that the last of ``losses`` completes; 0 if there is no spike."""
        known = [loss for loss in losses[: -self.num_losses][-self.window :] if loss is not None]
        if 2 * len(known) < self.window:
            return 0
        limit = self.limit(known)
        late = [*takewhile(lambda loss: loss is None or loss > limit, reversed(losses))]
        return len(late) if self._shows(late) and not self._shows(late[1:]) else 0

    def _shows(self, late: Sequence[float | None]) -> bool:
        """Return whether outlying losses, the latest first, are a spike; dropped updates alone are not."""
        return len(late) >= self.num_losses and any(loss is not None for loss in late)

    def limit(self, known: Sequence[float]) -> float:
        """Return the threshold above which a loss stands out from the ``known`` losses."""
        middle = median(known)
        spread = _DEVIATIONS * median(abs(loss - middle) for loss in known)
        return middle + max(self.zscore * spread, self.min_rise * abs(middle))
