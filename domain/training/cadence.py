"""A cadence in steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cadence:
    """Due at each multiple of ``steps`` above 0; never due if ``steps`` is 0."""

    steps: int

    def is_due(self, step: int) -> bool:
        """Return whether it is due after ``step`` complete steps."""
        return self.steps > 0 and step > 0 and step % self.steps == 0
