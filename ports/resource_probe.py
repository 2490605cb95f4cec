"""What the machine has left."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.domain.resources.knobs import ResourceSample


class ResourceProbe(ABC):
    """Looks at the machine on which this process runs.

    - ``sample`` returns shares from 0 to 1 and rates that are not negative; what cannot be told is None.
    - Shares of time and rates are those since the sample before, or since the probe was made.
    - A call takes milliseconds, from one thread at a time, and leaves what it looks at alone.
    - ``close`` may be called twice; ``sample`` is not called after it.
    """

    @abstractmethod
    def sample(self) -> ResourceSample:
        """Return what is in use now."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what it looked with."""
