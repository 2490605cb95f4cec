"""The budget of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.domain.training.progress import Progress


@dataclass(frozen=True, slots=True)
class Budget:
    """The length of a run in optimizer steps or in tokens; the first limit to be reached ends the run."""

    steps: int | None = None
    tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a budget without a limit."""
        if self.steps is None and self.tokens is None:
            msg = "a budget needs steps or tokens"
            raise ValueError(msg)

    def fraction_spent_by(self, progress: Progress) -> float:
        """Return the fraction of the budget that is spent, from 0 to 1."""
        shares = [
            done / limit
            for done, limit in ((progress.step, self.steps), (progress.tokens, self.tokens))
            if limit is not None
        ]
        return min(1.0, max(shares))

    def is_spent_by(self, progress: Progress) -> bool:
        """Return whether the budget is spent."""
        return self.fraction_spent_by(progress) >= 1.0
