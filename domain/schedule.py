"""The learning rate over a run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.budget import Budget
    from domain.progress import Progress


@dataclass(frozen=True, slots=True)
class WarmupCosine:
    """Linear warm-up to ``peak`` over ``warmup_steps``, then a half cosine to ``floor`` at the end of the budget.

    The shape is that of SGDR without restarts (Loshchilov and Hutter, 2017). A pure function of progress: it has no
    state to save, and a resumed run cannot leave the curve.
    """

    peak: float
    warmup_steps: int
    floor: float
    budget: Budget

    def at(self, progress: Progress) -> float:
        """Return the learning rate of the step that follows ``progress``."""
        if progress.step < self.warmup_steps:
            return self.peak * (progress.step + 1) / self.warmup_steps
        spent = self.budget.fraction_spent_by(progress)
        warmed_up = (
            spent * self.warmup_steps / max(1, progress.step)
        )  # warm-up's share of the budget, steps being equal
        decayed = (spent - warmed_up) / (1.0 - warmed_up) if warmed_up < 1.0 else 1.0
        cosine = 0.5 * (1.0 + math.cos(math.pi * decayed))
        return self.floor + (self.peak - self.floor) * cosine
