"""Checks whether host memory is free for work beside training."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import psutil

from holdfast.adapters.shared.device.host_memory import free_share
from holdfast.domain.checkpoints.tiers import Hysteresis

if TYPE_CHECKING:
    from collections.abc import Callable

_LEAST_SHARE = 0.1


def has_room_beside(is_wanted: bool) -> bool:  # noqa: FBT001  a setting, bound ahead
    """Return whether work during training ``is_wanted`` and a tenth of the host's memory is free for it."""
    return is_wanted and free_share() > _LEAST_SHARE


@final
class MemoryPressure:
    """Reports whether the host's memory is nearly full: from the upper end of ``band`` until below its lower end."""

    def __init__(self, free: Callable[[], float] | None = None, band: Hysteresis | None = None) -> None:
        self._free = free or free_share
        self._band = band or Hysteresis()
        self._is_on = False

    def __call__(self) -> bool:
        """Measure the free memory; return whether memory is nearly full."""
        self._is_on = self._band.holds(1.0 - self._free(), held=self._is_on)
        return self._is_on


def total_bytes() -> int:
    """Return the memory of this machine in bytes."""
    return int(psutil.virtual_memory().total)
