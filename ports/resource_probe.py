"""The port for the resources of the machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.domain.resources.balance_policy import ResourceSample


class ResourceProbe(ABC):
    """Measures the machine on which this process runs.

    - ``sample`` returns fractions from 0 to 1 and rates that are not negative; unknown values are None.
    - Fractions of time and rates refer to the time since the previous sample, or since the probe was created.
    - A call takes milliseconds, comes from one thread at a time, and changes nothing.
    - ``close`` may be called twice; ``sample`` is not called after it.
    """

    @abstractmethod
    def sample(self) -> ResourceSample:
        """Return the resources that are in use now."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources that the probe holds."""
