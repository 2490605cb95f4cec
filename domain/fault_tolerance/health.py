"""The health of a run: its recent losses, dropped updates and roll-backs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Mapping

REMEMBERED = 128
"""The steps whose losses are remembered."""

IN_VAIN = 4
"""The returns to one checkpoint, one after another, after which it is held to be at fault."""


@dataclass(frozen=True, slots=True)
class Health:
    """What has gone wrong so far, and the losses by which to tell: all that a decision to go back depends on.

    ``losses`` are those of the last steps, None where the update was dropped; ``dropped`` counts these since the run's
    start, and ``returns`` are the steps to which the run was rolled back, in order.
    """

    losses: tuple[float | None, ...] = ()
    dropped: int = 0
    returns: tuple[int, ...] = ()

    def after(self, loss: float | None) -> Health:
        """Return the health behind a step of this mean ``loss``, None if its update was dropped."""
        kept = loss if loss is not None and math.isfinite(loss) else None
        losses = (*self.losses[1 - REMEMBERED :], kept)
        return replace(self, losses=losses, dropped=self.dropped + (loss is None))

    @property
    def dropped_in_row(self) -> int:
        """Return how many of the last steps, one after another, had no loss or no update."""
        return sum(1 for _ in takewhile(lambda loss: loss is None, reversed(self.losses)))

    def last_good(self, first_bad: int, every: int) -> int:
        """Return the last step to go back to if ``first_bad`` is the first one that went wrong.

        The loss of a step is that of the parameters before it, so the step before the last good one is vouched for; and
        so is one that was gone back to, while no later return led behind it. Of others only multiples of ``every``
        count, at which checkpoints are made in any case, so that a run that was interrupted and saved elsewhere goes
        back to where it would have without.
        """
        good = max(0, first_bad - 2)
        good = good // every * every if every else good
        standing = accumulate(reversed(self.returns), min)
        return max([good, *(step for step in standing if step < first_bad)])

    def before_good(self, good: int, every: int) -> int | None:
        """Return the step to go back to rather than to ``good``, None while that may be right.

        Whatever is read behind it, the loss went astray again: ``good`` may have been spoilt unnoticed.
        """
        in_vain = takewhile(lambda step: step == good, reversed(self.returns))
        older = (good - 1) // every * every if every else good - 1
        return older if older > 0 and sum(1 for _ in in_vain) >= IN_VAIN else None

    def batches_to_skip(self, step: int, consumed: int) -> int:
        """Return how many batches to pass over beside the ``consumed`` ones: more with each return to ``step``.

        Returns to a later one count too if they led back here.
        """
        in_row = takewhile(lambda back: back >= step, reversed(self.returns))
        return consumed * ((1 << sum(1 for _ in in_row)) - 1)

    def has_kept(self, step: int, then: Health) -> bool:
        """Return whether a run of this health still stands on what it was at ``step``, in the health of ``then``."""
        since = self.returns[len(then.returns) :]
        return self.returns[: len(then.returns)] == then.returns and all(step <= back for back in since)

    def to_json(self) -> dict[str, Any]:
        """Return the health as JSON."""
        return {"losses": list(self.losses), "dropped": self.dropped, "returns": list(self.returns)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the health that ``to_json`` described; raises ``ValueError`` if it is none."""
        losses, dropped, returns = record["losses"], record["dropped"], record["returns"]
        if not all(loss is None or (type(loss) is float and math.isfinite(loss)) for loss in losses):
            msg = "losses holds values other than numbers"
            raise ValueError(msg)
        if not all(type(count) is int and count >= 0 for count in (dropped, *returns)):
            msg = "dropped or returns holds values other than counts"
            raise ValueError(msg)
        return cls(tuple(losses), dropped, tuple(returns))
