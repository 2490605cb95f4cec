"""How far a run has come."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from domain.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from domain.batch import Batch


@dataclass(frozen=True, slots=True)
class Progress:
    """Complete optimizer steps, the tokens in them, and where the next batch starts."""

    step: int = 0
    tokens: int = 0
    cursor: Cursor = field(default_factory=Cursor)

    def after(self, batch: Batch, num_tokens: int | None = None) -> Progress:
        """Return the progress once ``batch``, of ``num_tokens`` on all ranks, has been trained on."""
        return Progress(self.step + 1, self.tokens + (num_tokens or batch.num_tokens), batch.cursor)

    def to_json(self) -> dict[str, Any]:
        """Return the progress as JSON."""
        return {"step": self.step, "tokens": self.tokens, "cursor": self.cursor.to_json()}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """Return the progress that ``to_json`` described."""
        return cls(int(record["step"]), int(record["tokens"]), Cursor.from_json(record["cursor"]))
