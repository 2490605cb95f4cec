"""The health of a run: its recent losses, dropped updates and roll-backs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from statistics import median
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

REMEMBERED = 128
"""The steps whose losses are remembered."""

IN_VAIN = 4
"""The returns to one checkpoint, one after another, after which it is held to be at fault."""


@dataclass(frozen=True, slots=True)
class Health:
    """The losses, dropped updates and roll-backs so far: everything that the decision to roll back depends on.

    ``losses`` are those of the last steps, None where the update was dropped. ``dropped`` counts dropped updates since
    the run began. ``returns`` are the steps to which the run was rolled back, in order.
    """

    losses: tuple[float | None, ...] = ()
    dropped: int = 0
    returns: tuple[int, ...] = ()

    def after(self, loss: float | None) -> Health:
        """Return the health after a step with the mean ``loss``, None if its update was dropped."""
        kept = loss if loss is not None and math.isfinite(loss) else None
        losses = (*self.losses[1 - REMEMBERED :], kept)
        return replace(self, losses=losses, dropped=self.dropped + (loss is None))

    def after_idle(self) -> Health:
        """Return the health after a step without a target: its loss counts as that of the step before."""
        return replace(self, losses=(*self.losses[1 - REMEMBERED :], *self.losses[-1:]))

    @property
    def dropped_in_row(self) -> int:
        """Return the number of steps at the end of the history without a finite loss or without an update."""
        return sum(1 for _ in takewhile(lambda loss: loss is None, reversed(self.losses)))

    def last_good(self, first_bad: int, every: int) -> int:
        """Return the last step that is safe to roll back to if ``first_bad`` is the first bad step.

        The loss of a step is computed before its update, so the last safe step is two before the first bad one. A step
        that the run has rolled back to stays safe until a later roll-back goes further back. Other candidates are
        rounded down to a multiple of ``every``, where a checkpoint always exists, so that an interrupted run, which
        saved at other steps, rolls back to the same step as an undisturbed one.
        """
        good = max(0, first_bad - 2)
        good = good // every * every if every else good
        standing = accumulate(reversed(self.returns), min)
        return max([good, *(step for step in standing if step < first_bad)])

    def before_good(self, good: int, every: int) -> int | None:
        """Return an older step to roll back to instead of ``good``, None while ``good`` may still be right.

        If the loss diverges again after several roll-backs to ``good``, whichever batches follow, the checkpoint itself
        may be the cause.
        """
        in_vain = takewhile(lambda step: step == good, reversed(self.returns))
        older = (good - 1) // every * every if every else good - 1
        return older if older > 0 and sum(1 for _ in in_vain) >= IN_VAIN else None

    def batches_to_skip(self, step: int, consumed: int) -> int:
        """Return the number of batches to skip after the ``consumed`` ones; each roll-back to ``step`` doubles it.

        Roll-backs to later steps count too if they led back here.
        """
        in_row = takewhile(lambda back: back >= step, reversed(self.returns))
        return consumed * ((1 << sum(1 for _ in in_row)) - 1)

    def has_kept(self, step: int, then: Health) -> bool:
        """Return whether no roll-back since ``step``, when the health was ``then``, went to an earlier step."""
        since = self.returns[len(then.returns) :]
        return self.returns[: len(then.returns)] == then.returns and all(step <= back for back in since)

    def to_json(self) -> dict[str, Any]:
        """Return the health as JSON."""
        return {"losses": list(self.losses), "dropped": self.dropped, "returns": list(self.returns)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the health that ``to_json`` described; raises ``ValueError`` if ``record`` is not valid."""
        losses, dropped, returns = record["losses"], record["dropped"], record["returns"]
        if not all(loss is None or (type(loss) is float and math.isfinite(loss)) for loss in losses):
            msg = "losses holds values other than numbers"
            raise ValueError(msg)
        if not all(type(count) is int and count >= 0 for count in (dropped, *returns)):
            msg = "dropped or returns holds values other than counts"
            raise ValueError(msg)
        return cls(tuple(losses), dropped, tuple(returns))


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
        present = [loss for loss in losses[: -self.num_losses][-self.window :] if loss is not None]
        if 2 * len(present) < self.window:
            return 0
        limit = self.limit(present)
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
