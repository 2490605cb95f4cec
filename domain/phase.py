"""Reports of the activity of a run between steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

BYTES = "B"
"""The unit of amounts that are shown as sizes."""


class PreparationPhase(StrEnum):
    """A part of the work of a run before its first step, in this order."""

    DATA = "data"
    TOKENIZER = "tokenizer"
    TOKENS = "tokens"
    ROWS = "rows"
    MODEL = "model"
    REFERENCE = "reference"
    COMPILATION = "compilation"


@dataclass(frozen=True, slots=True)
class Amount:
    """The ``done`` of ``total`` units of a phase, so that its rate and the time left can be shown.

    ``total`` is None if it is not known.
    """

    done: float
    total: float | None = None
    unit: str = BYTES

    @property
    def share(self) -> float | None:
        """Return the completed fraction, from 0 to 1, None without a total."""
        return None if not self.total else min(1.0, self.done / self.total)


def saving_phase(step: int) -> str:
    """Return the phase in which training waits for the checkpoint of ``step``."""
    return f"saving checkpoint-{step}"


class ShowPhase(Protocol):
    """Shows the current phase to the user; an empty name ends the phase."""

    def __call__(self, phase: str, share: float | Amount | None = None, /) -> object:
        """Show ``phase``, and the completed fraction or the amount of it if that is known."""
        ...


def show_nothing(_phase: str, _share: float | Amount | None = None, /) -> None:
    """Show no phase."""
