"""The progress of a run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from holdfast.domain.data.cursor import Cursor
from holdfast.domain.fault_tolerance.health import Health
from holdfast.domain.training.early_stopping import Patience

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.domain.data.batch import Batch
    from holdfast.domain.training.early_stopping import EarlyStopping


@dataclass(frozen=True, slots=True)
class Progress:
    """The complete optimizer steps of a run, their tokens, the position of the next batch, and the run's health.

    ``patience`` is the state of early stopping, None before the first evaluation and without early stopping.
    """

    step: int = 0
    tokens: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    health: Health = field(default_factory=Health)
    patience: Patience | None = None

    def after(self, batch: Batch, num_tokens: int | None = None, loss: float | None = None) -> Progress:
        """Return the progress after a step on ``batch``.

        ``num_tokens`` counts the tokens of the step on all ranks (None: those of ``batch``). ``loss`` is its mean
        loss, or None if the update was dropped.
        """
        tokens = self.tokens + (num_tokens or batch.num_tokens)
        return replace(self, step=self.step + 1, tokens=tokens, cursor=batch.cursor, health=self.health.after(loss))

    def after_idle(self, batch: Batch, num_tokens: int) -> Progress:
        """Return the progress after a step on ``batch`` without targets, of ``num_tokens`` tokens on all ranks."""
        return replace(self.after(batch, num_tokens), health=self.health.after_idle())

    def evaluated(self, metrics: Mapping[str, float], rule: EarlyStopping | None) -> Progress:
        """Return the progress after an evaluation that measured ``metrics``; without a ``rule`` no state is kept."""
        return replace(self, patience=None if rule is None else rule.after(self.patience, self.step, metrics))

    def rolled_back_to(self, restored: Progress) -> Progress:
        """Return the progress of this run after a roll-back to ``restored``, to continue with the next batches."""
        returns = (*self.health.returns, restored.step)
        health = replace(restored.health, dropped=self.health.dropped, returns=returns)
        return replace(restored, cursor=self.cursor, health=health)

    def to_json(self) -> dict[str, Any]:
        """Return the progress as JSON."""
        return {
            "step": self.step,
            "tokens": self.tokens,
            "cursor": self.cursor.to_json(),
            "health": self.health.to_json(),
            **({} if self.patience is None else {"early_stopping": self.patience.to_json()}),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the progress that ``to_json`` described; earlier versions recorded no health.

        Raises ``ValueError`` if ``record`` is not valid.
        """
        health = Health.from_json(record["health"]) if "health" in record else Health()
        patience = Patience.from_json(record["early_stopping"]) if "early_stopping" in record else None
        return cls(int(record["step"]), int(record["tokens"]), Cursor.from_json(record["cursor"]), health, patience)
