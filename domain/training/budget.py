"""The budget of a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.domain.training.step_outcome import Progress


@dataclass(slots=True)
class Budget:
    """The length of a run in optimizer steps, tokens or minutes; the first limit to be reached ends the run.

    ``epochs`` are those of the data, and set the length if there is no other limit. A run never compares its time or
    its epochs with the budget: before its first step ``decided`` turns minutes or epochs into steps, so that a resumed
    run ends at the same step. The steps of epochs change, for all that have the budget, only if the run continues from
    before they were decided. Raises ``ValueError`` without any limit.
    """

    steps: int | None = None
    tokens: int | None = None
    minutes: float | None = None
    epochs: int | None = None

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a budget without a limit."""
        if self.is_undecided and self.minutes is None and self.epochs is None:
            msg = "a budget needs steps, tokens, minutes or epochs"
            raise ValueError(msg)

    @property
    def is_undecided(self) -> bool:
        """Return whether minutes or epochs alone limit the run, and their steps are not decided yet."""
        return self.steps is None and self.tokens is None

    def decided(self, steps: int) -> Budget:
        """Return the budget with the limit ``steps``, those of minutes or epochs, unless it is lower already."""
        return replace(self, steps=steps if self.steps is None else min(self.steps, steps))

    def fraction_spent_by(self, progress: Progress) -> float:
        """Return the fraction of the budget that is spent, from 0 to 1."""
        shares = [
            done / limit
            for done, limit in ((progress.step, self.steps), (progress.tokens, self.tokens))
            if limit is not None
        ]
        return min(1.0, max(shares, default=0.0))

    def is_spent_by(self, progress: Progress) -> bool:
        """Return whether the budget is spent."""
        return self.fraction_spent_by(progress) >= 1.0
