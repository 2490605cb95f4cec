"""The budget of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.domain.training.progress import Progress


@dataclass(frozen=True, slots=True)
class Budget:
    """How much to train, in optimizer steps or in tokens, whichever is given; the first to be reached ends the run."""

    steps: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Refuse a run without an end."""
        if self.steps is None and self.tokens is None:
            msg = "a budget needs steps or tokens"
            raise ValueError(msg)

    def fraction_spent_by(self, progress: Progress) -> float:
        """Return the share of the budget that is used up, from 0 to 1."""
        shares = [
            done / limit
            for done, limit in ((progress.step, self.steps), (progress.tokens, self.tokens))
            if limit is not None
        ]
        return min(1.0, max(shares))

    def is_spent_by(self, progress: Progress) -> bool:
        """Return whether the run is done."""
        return self.fraction_spent_by(progress) >= 1.0
