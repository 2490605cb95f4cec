"""The port for communication between the processes that train together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.commands import Command


class ProcessGroup(ABC):
    """One or more processes ("ranks") of one run.

    - ``rank`` lies in ``[0, size)`` and differs in each process.
    - ``agree`` returns the same commands in the same order on every rank: the commands of all ranks, ordered by rank,
      without duplicates. With size 1 it returns its argument.
    - ``gather`` returns every rank's text, ordered by rank. ``sum`` returns the sum of each number over all ranks, with
      the same bits on each rank; integers up to 2**53 are exact.
    - ``barrier`` returns once every rank has called it.
    - ``agree``, ``gather``, ``sum`` and ``barrier`` are collective: every rank calls them, in the same order. If a
      rank is lost, they raise ``TrainingError`` on the others within the group's timeout; they never hang.
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
        """Return the seconds after which a rank that does not answer is considered lost."""

    @abstractmethod
    def agree(self, commands: Sequence[Command]) -> Sequence[Command]:
        """Return the commands that every rank has to execute. Raises ``TrainingError`` if a rank is lost."""

    @abstractmethod
    def gather(self, text: str) -> Sequence[str]:
        """Return the text of each rank. Raises ``TrainingError`` if a rank is lost."""

    @abstractmethod
    def sum(self, numbers: Sequence[float]) -> Sequence[float]:
        """Return the sum over ranks of each of ``numbers``; every rank passes the same number of them.

        Raises ``TrainingError`` if a rank is lost.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Wait for every rank. Raises ``TrainingError`` if a rank is lost."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group."""


class KeyValueStore(ABC):
    """Texts that the ranks of a group show each other; a ``ProcessGroup`` may be one too.

    The methods are not collective, may be called from any thread, and return at once. What is published is a hint that
    spares others work: a text that is lost must change no result.
    """

    @abstractmethod
    def publish(self, key: str, text: str) -> None:
        """Show all ranks ``text`` under ``key``, in place of an earlier text."""

    @abstractmethod
    def lookup(self, key: str) -> str | None:
        """Return the text that a rank published under ``key``, None if there is none (yet)."""

    @abstractmethod
    def forget(self, key: str) -> None:
        """Remove the text under ``key``, if there is one."""
