"""The processes that train together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.commands import Command


class ProcessGroup(ABC):
    """One or more processes ("ranks") of one run.

    - ``rank`` lies in ``[0, size)`` and differs in each process.
    - ``agree`` returns the same commands in the same order on every rank: all that any rank gave, by rank, each
      once. Size 1 is the identity.
    - ``gather`` returns every rank's text, by rank. ``sum`` returns the numbers' sums over all ranks, the same bits on
      each; whole numbers up to 2**53 are exact.
    - ``barrier`` returns once every rank has called it.
    - ``agree``, ``gather``, ``sum`` and ``barrier`` are collective: every rank calls them, in the same order. A rank
      that is gone raises ``TrainingError`` on the others within the group's time-out; it never hangs for good.
    - ``close`` may be called twice and is not collective.
    """

    @property
    @abstractmethod
    def rank(self) -> int:
        """Return the number of this process."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Return the number of processes."""

    @property
    @abstractmethod
    def timeout_seconds(self) -> float:
        """Return after how long a rank that does not come is given up."""

    @abstractmethod
    def agree(self, commands: Sequence[Command]) -> Sequence[Command]:
        """Return what every rank is to obey."""

    @abstractmethod
    def gather(self, text: str) -> Sequence[str]:
        """Return the text of each rank."""

    @abstractmethod
    def sum(self, numbers: Sequence[float]) -> Sequence[float]:
        """Return the sum of each of ``numbers``, of which every rank has as many."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait for every rank."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group."""
