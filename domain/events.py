"""Events of a run, as past-tense facts; each may have many handlers, and none can stop the loop.

    RunStarted
    while budget is left:
        batch = next(feed)                     -> DataStalled, or
                                               -> DataEnded         (handlers may answer Evaluate; then StopRun)
        one optimizer step                     -> UpdateDropped, if its loss or gradient was no number
                                               -> StepCompleted     (handlers may answer Evaluate, SaveCheckpoint)
                                               -> MemoryExhausted   (handlers may answer SplitBatch; same batch again)
        execute commands
            SplitBatch                         -> BatchSplit, ContractWeakened
            AdjustResources                    -> ResourcesAdjusted
            Evaluate                           -> EvaluationCompleted
            SaveCheckpoint                     -> CheckpointStarted (and, once it is written:)
            AcknowledgeSave                    -> CheckpointSaved or CheckpointFailed
            AcknowledgeArchive                 -> CheckpointArchived or ArchiveFailed
            AcknowledgeMove, DropCopy          -> CheckpointMoved
            RollBack                           -> RolledBack, or RollBackSkipped
            StopRun                            -> StopRequested     (handlers may answer SaveCheckpoint)
    RunFinished, or RunFailed                  (its handlers make the last complete step durable)

``CheckpointRejected`` comes before ``RunStarted``, once for each checkpoint that was set aside, and so does
``ContractWeakened`` if the run continues under other conditions. The bus publishes ``HandlerFailed`` if a handler
raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.domain.checkpoints.tiers import Tier
    from holdfast.domain.resources.knobs import Knob
    from holdfast.domain.training.progress import Progress
    from holdfast.domain.training.step_outcome import Evaluation, StepOutcome


@dataclass(frozen=True, slots=True)
class Event:
    """A fact about the run."""


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """The loop begins, from nothing (step 0) or from a restored checkpoint."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class StepCompleted(Event):
    """One optimizer step was applied; ``outcome`` has its figures, and those of the data up to it."""

    progress: Progress
    outcome: StepOutcome


@dataclass(frozen=True, slots=True)
class UpdateDropped(Event):
    """The loss or gradient of a step was no number: the step counts, its batch is consumed, and nothing was updated."""

    progress: Progress
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryExhausted(Event):
    """A step did not fit into memory; nothing was changed, and ``micro_batch`` rows were tried at a time."""

    progress: Progress
    micro_batch: int
    message: str


@dataclass(frozen=True, slots=True)
class BatchSplit(Event):
    """Micro-batches have another size from now on; the effective batch is the same."""

    progress: Progress
    micro_batch: int


@dataclass(frozen=True, slots=True)
class ResourcesAdjusted(Event):
    """The run uses more or less of the machine: ``knob`` went from ``before`` to ``after``, for ``reason``."""

    progress: Progress
    knob: Knob
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True)
class EvaluationCompleted(Event):
    """The held-out documents were measured."""

    progress: Progress
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class CheckpointStarted(Event):
    """State is about to be captured: what must not be older than the checkpoint is made safe by handlers of this."""

    progress: Progress
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointSaved(Event):
    """A checkpoint is durable at ``location``, ``seconds`` after it was begun; training waited ``stall_seconds``."""

    progress: Progress
    location: str
    reason: str
    seconds: float
    stall_seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointFailed(Event):
    """A checkpoint could not be made durable, those before it are as they were, and training goes on."""

    progress: Progress
    reason: str
    problem: str


@dataclass(frozen=True, slots=True)
class CheckpointArchived(Event):
    """The checkpoint of ``step`` has a verified copy at ``location``, which took ``seconds`` beside training."""

    step: int
    location: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ArchiveFailed(Event):
    """The checkpoint of ``step`` could not be copied to the archive; the next one is tried, and training goes on."""

    step: int
    problem: str


@dataclass(frozen=True, slots=True)
class CheckpointMoved(Event):
    """The copy of ``step`` in one tier gave way to that in another, or one was brought there to be read."""

    step: int
    source: Tier
    target: Tier
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointRejected(Event):
    """A checkpoint failed verification and was set aside at ``location``; an older one is used."""

    name: str
    reason: str
    location: str


@dataclass(frozen=True, slots=True)
class ContractWeakened(Event):
    """From here on the run equals the undisturbed one but for rounding, for these ``reasons``."""

    progress: Progress
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class RolledBack(Event):
    """The run stood at ``from_step`` and goes on from an earlier checkpoint, of ``progress``, for this ``reason``."""

    progress: Progress
    from_step: int
    reason: str


@dataclass(frozen=True, slots=True)
class RollBackSkipped(Event):
    """The run should have gone back for ``reason``, but has no checkpoint that old: training goes on as it is."""

    progress: Progress
    reason: str


@dataclass(frozen=True, slots=True)
class DataStalled(Event):
    """Training waited ``seconds`` for the batch that comes now, although batches are made ahead."""

    progress: Progress
    seconds: float


@dataclass(frozen=True, slots=True)
class RunStalled(Event):
    """Training had shown no sign of life for so many ``seconds``, and goes on."""

    progress: Progress
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class DataEnded(Event):
    """Finite data have been trained on; the run stops once this is answered."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """Somebody asked the run to end at this step boundary."""

    progress: Progress
    reason: str
    signal: int | None


@dataclass(frozen=True, slots=True)
class RunFailed(Event):
    """An exception ends the run; ``progress`` is the last complete step."""

    progress: Progress
    error: BaseException


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """The loop ended without an error."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class HandlerFailed(Event):
    """A handler of ``event`` raised; training went on."""

    event: str
    handler: str
    error: Exception
