"""The port for the record of the documents that a run has read, step by step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from holdfast.domain.data.batch import Spans, UnitName


@dataclass(frozen=True, slots=True, eq=False)
class StepRecords:
    """Completed steps in increasing order, one element of each array for each step.

    ``step`` int64 is the number of the step. Its samples are those from ``first_sample`` up to, but not including,
    ``end_sample``, both int64. ``loss`` float64 is the mean loss in nats, NaN if the update was dropped. ``tokens``
    int64 counts the tokens of the step.
    """

    step: NDArray[np.int64]
    first_sample: NDArray[np.int64]
    end_sample: NDArray[np.int64]
    loss: NDArray[np.float64]
    tokens: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Rejects:
    """Records that were left out; ``unit`` int64 is an index of ``units``, ``position`` int64 the place in the unit.

    ``rule`` names the rule that a record broke, and ``reason`` describes it for a person.
    """

    unit: NDArray[np.int64]
    position: NDArray[np.int64]
    rule: tuple[str, ...]
    reason: tuple[str, ...]
    units: tuple[UnitName, ...]


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A durable checkpoint of ``step`` at ``location``, saved for ``reason`` at ``time`` (seconds since 1970, UTC)."""

    step: int
    location: str
    reason: str
    time: float


class StepTaken(NamedTuple):
    """A step that a run took; ``is_current`` is false once the run has rolled back to an earlier step.

    ``attempt`` counts from 0 the different samples with which the run took the step.
    """

    run: str
    step: int
    attempt: int
    is_current: bool


class SourceCount(NamedTuple):
    """The samples, pieces of documents and tokens of one source."""

    samples: int
    spans: int
    tokens: int


class Ledger(ABC):
    """Records the steps of runs and the documents in them, and answers questions about both.

    - A step of a run is identified by its samples. To record it again changes nothing while it is current. If it was
      rolled back, it becomes current again with the new loss, so a run that was killed may repeat its steps.
    - At most one attempt of a (run, step) is current. A step with other samples is a new attempt, and the earlier one
      is no longer current. No attempt is removed.
    - A call is recorded as a whole or not at all, and may be repeated: after an error, or by the next process.
    - A question sees all calls that were made before the last ``flush``.
    - Calls come from one thread at a time. A place that cannot be reached raises ``StateError``, and a later call
      tries again.
    """

    @abstractmethod
    def begin_run(self, run: str, details: Mapping[str, object], time: float) -> None:
        """Record the run with the id ``run``, or replace its details; ``details`` can be JSON.

        ``time`` is in seconds since 1970; the time of the first call for ``run`` is recorded.
        """

    @abstractmethod
    def end_run(self, run: str, state: str, time: float) -> None:
        """Record that ``run`` ended at ``time``; ``state`` is finished, stopped early, stopped or failed."""

    @abstractmethod
    def record(self, run: str, steps: StepRecords, spans: Spans) -> None:
        """Record ``steps`` of a run that has begun, and ``spans``, the pieces of documents in their samples."""

    @abstractmethod
    def roll_back(self, run: str, to_step: int) -> None:
        """Mark all steps of ``run`` after ``to_step`` as rolled back."""

    @abstractmethod
    def reject(self, run: str, rejects: Rejects) -> None:
        """Record records that were left out; one that is recorded already, with the same rule, is left as it is."""

    @abstractmethod
    def checkpoint(self, run: str, saved: CheckpointRecord) -> None:
        """Record a checkpoint; it replaces an earlier one of the same step."""

    @abstractmethod
    def flush(self) -> None:
        """Return once all calls are recorded; raises ``StateError`` if that is not possible now."""

    @abstractmethod
    def close(self) -> None:
        """Release the ledger; may be called twice."""

    @abstractmethod
    def steps(self, run: str) -> StepRecords:
        """Return the current steps of ``run``."""

    @abstractmethod
    def documents_in(self, run: str, step: int) -> Spans:
        """Return the pieces of documents in the current attempt of ``step``; none if it is not recorded."""

    @abstractmethod
    def steps_with(self, document: int) -> Sequence[StepTaken]:
        """Return each step of any run that had a piece of ``document``, ordered by run, step and attempt.

        ``document`` is an unsigned 64-bit number. Steps that were rolled back are part of the answer.
        """

    @abstractmethod
    def source_counts(self, run: str, epoch: int) -> Mapping[str, SourceCount]:
        """Return the counts of each source in its ``epoch``, over the current steps of ``run``."""

    @abstractmethod
    def rejected(self, run: str) -> Rejects:
        """Return the records that ``run`` left out, ordered by source, unit, position and rule."""

    @abstractmethod
    def checkpoints(self, run: str) -> Sequence[CheckpointRecord]:
        """Return the checkpoints of ``run``, ordered by step."""
