"""The port for a hyperparameter search."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.tuning.search_space import Value
    from holdfast.domain.tuning.trial import Trial, TrialEnd


class Study(ABC):
    """Records the trials of a search, suggests their parameters, and judges their measurements.

    - Every call is durable when it returns, and may be repeated: after an error, or by the next process. Several
      processes may use the study at once, each with an object of its own.
    - ``parallel`` trials may train at once. What the study says of trial N is a pure function of its seed, its space,
      N, the measurements of N so far, and trials 0 to N - ``parallel``, which must have ended. So neither a kill nor
      the order in which trials end changes a search.
    - The best value is the lowest, or the highest if the study was opened so.
    - A place that cannot be read or written raises ``StateError``.
    """

    @property
    @abstractmethod
    def parallel(self) -> int:
        """Return the number of trials that may train at once, at least 1."""

    @abstractmethod
    def trials(self) -> Sequence[Trial]:
        """Return all trials, in the order of their numbers."""

    @abstractmethod
    def add(self, number: int) -> None:
        """Add trial ``number``, which must be the next one, unless it is there already."""

    @abstractmethod
    def suggest(self, number: int) -> Mapping[str, Value]:
        """Return the parameters of trial ``number``: those of an earlier call, or new ones, which are recorded."""

    @abstractmethod
    def report(self, number: int, step: int, value: float) -> bool:
        """Record the measurement ``value`` of trial ``number`` at ``step``; return whether the trial is to be pruned.

        The steps of a trial ascend. A second measurement of a step is not recorded, and gets the answer of the first
        one. ``value`` may be NaN or infinite.
        """

    @abstractmethod
    def finish(self, number: int, end: TrialEnd) -> None:
        """Record the end of trial ``number``; that of a trial which has ended stays as it is."""

    @abstractmethod
    def close(self) -> None:
        """Release the study; may be called twice."""
