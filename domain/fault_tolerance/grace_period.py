"""The grace period between a signal and the end of the process."""

from __future__ import annotations

from dataclasses import dataclass

_SHARE_FOR_THE_STEP = 0.5


@dataclass(frozen=True, slots=True)
class GracePeriod:
    """The ``seconds`` between a signal and the forced end of the process: half for the step, half for its save."""

    seconds: float = 30.0

    def is_short(self, waited: float) -> bool:
        """Return whether, ``waited`` seconds after the signal, the rest is needed to save the step before."""
        return waited >= self.seconds * _SHARE_FOR_THE_STEP
