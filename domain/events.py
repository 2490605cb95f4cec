"""Events of a run, as past-tense facts; each may have many handlers, and none can stop the loop.

    each phase of the preparation              -> PreparationStarted, PreparationProgressed, PreparationEnded
    RunStarted
    while budget is left:
        batch = next(feed)                     -> DataStalled, or
                                               -> DataEnded         (handlers may answer Evaluate; then StopRun)
        one optimizer step                     -> CompilationStarted, in the first steps of a compiled model
                                               -> UpdateDropped, if its loss or gradient is not finite
                                               -> StepCompleted     (handlers may answer Evaluate, SaveCheckpoint)
                                               -> MemoryExhausted   (handlers may answer SplitBatch; same batch again)
        execute commands
            SplitBatch                         -> BatchSplit, ContractWeakened
            AdjustResources                    -> ResourcesAdjusted
            Evaluate                           -> EvaluationProgressed, EvaluationCompleted, TextGenerated
                                                   (handlers may answer SaveCheckpoint, StopEarly)
            SaveCheckpoint                     -> CheckpointStarted (and, once it is written:)
            AcknowledgeSave                    -> CheckpointSaved or CheckpointFailed
            AcknowledgeArchive                 -> CheckpointArchived or ArchiveFailed
            AcknowledgeMove, DropCopy          -> CheckpointMoved
            RollBack                           -> RolledBack, or RollBackSkipped
            ReportDamage                       -> CheckpointRejected
            ReportStall                        -> RunStalled
            StopRun, StopEarly                 -> StopRequested     (handlers may answer SaveCheckpoint)
    RunFinished, or RunFailed                  (its handlers make the last complete step durable)

``CheckpointRejected`` comes before ``RunStarted``, once for each checkpoint that is moved to quarantine, and so
does ``ContractWeakened`` if the run continues under different conditions. ``SuiteEvaluated`` and ``SuiteFailed`` come
after a later step, or before ``RunFinished``. A request to stop ends the preparation at once: ``StopRequested`` and
``RunFinished`` follow. An error in it is a ``RunFailed`` too. The bus publishes ``HandlerFailed`` if a handler raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, SupportsFloat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.domain.checkpoints.tiers import Tier
    from holdfast.domain.phase import PreparationPhase
    from holdfast.domain.resources.balance_policy import Knob
    from holdfast.domain.training.step_outcome import Evaluation, Progress, StepOutcome
    from holdfast.domain.training.text_generation import GeneratedText


@dataclass(frozen=True, slots=True)
class Event:
    """A fact about the run."""


@dataclass(frozen=True, slots=True)
class PreparationStarted(Event):
    """A phase of the work before the first step begins."""

    phase: PreparationPhase


@dataclass(frozen=True, slots=True)
class PreparationProgressed(Event):
    """A phase of the preparation goes on since ``seconds``: at each new ``activity``, and about once a second.

    ``done`` of ``total`` units, such as B (bytes), pairs or tensors, are done as far as that is known.
    """

    phase: PreparationPhase
    activity: str
    seconds: float
    done: float | None = None
    total: float | None = None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class PreparationEnded(Event):
    """A phase of the preparation is complete, after ``seconds``."""

    phase: PreparationPhase
    seconds: float


@dataclass(frozen=True, slots=True)
class RunStarted(Event):
    """The loop begins at step 0 or from a restored checkpoint."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class StepCompleted(Event):
    """One optimizer step was applied; ``outcome`` has its figures, and those of the data up to it.

    ``figures`` are further ones of the model, by the names of their metrics, not yet read from the device.
    """

    progress: Progress
    outcome: StepOutcome
    figures: Mapping[str, SupportsFloat] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpdateDropped(Event):
    """The loss or gradient of a step was not finite: the step counts, its batch is consumed, no parameter changed."""

    progress: Progress
    reason: str


@dataclass(frozen=True, slots=True)
class MemoryExhausted(Event):
    """A step with micro-batches of ``micro_batch`` rows did not fit into memory; no parameter was changed."""

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
    """The run uses more or less of the machine: ``knob`` was turned from ``before`` to ``after``, for ``reason``."""

    progress: Progress
    knob: Knob
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True)
class CompilationStarted(Event):
    """A piece of the model's code begins to be compiled, within a step: it is the number ``graph`` of this process.

    The earlier ones took ``seconds``.
    """

    graph: int
    seconds: float


@dataclass(frozen=True, slots=True)
class EvaluationProgressed(Event):
    """An evaluation goes on: at its beginning, and about once a second.

    ``done`` of the ``total`` tokens of the set ``name``, or pairs with preferences, are measured; the held-out
    documents have no name.
    """

    progress: Progress
    name: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class EvaluationCompleted(Event):
    """The held-out documents and the sets were measured; ``progress`` includes the result, for early stopping."""

    progress: Progress
    evaluation: Evaluation


@dataclass(frozen=True, slots=True)
class TextGenerated(Event):
    """The model continued the prompts of the settings."""

    progress: Progress
    samples: Sequence[GeneratedText]


@dataclass(frozen=True, slots=True)
class SuiteEvaluated(Event):
    """The checkpoint of ``step`` was evaluated by benchmark suites in another process, which took ``seconds``.

    ``results`` are the metrics of each task. The run trained meanwhile, or waited at its end, for ``stall_seconds``.
    """

    step: int
    results: Mapping[str, Mapping[str, float]]
    seconds: float
    stall_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SuiteFailed(Event):
    """The checkpoint of ``step`` could not be evaluated by benchmark suites; training continues.

    At its end the run waited for ``stall_seconds`` before this was known.
    """

    step: int
    problem: str
    stall_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckpointStarted(Event):
    """State is about to be captured; handlers first write the files that must not be older than the checkpoint."""

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
    """A checkpoint could not be made durable, earlier ones are unchanged, and training continues."""

    progress: Progress
    reason: str
    problem: str


@dataclass(frozen=True, slots=True)
class CheckpointArchived(Event):
    """The checkpoint of ``step`` has a verified copy at ``location``, which took ``seconds`` beside training.

    ``deleted`` are the steps whose copies retention has deleted from the archive after that.
    """

    step: int
    location: str
    seconds: float
    deleted: Sequence[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ArchiveFailed(Event):
    """The checkpoint of ``step`` could not be copied to the archive; the next one is tried, and training continues."""

    step: int
    problem: str


@dataclass(frozen=True, slots=True)
class CheckpointMoved(Event):
    """The copy of ``step`` moved from the tier ``source`` to ``target``, or was fetched to ``target`` to be read."""

    step: int
    source: Tier
    target: Tier
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointRejected(Event):
    """A checkpoint failed verification and was moved to ``location``, in quarantine; an older one is used."""

    name: str
    reason: str
    location: str


@dataclass(frozen=True, slots=True)
class ContractWeakened(Event):
    """From here on the run equals the undisturbed one only up to rounding, for these ``reasons``."""

    progress: Progress
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class RolledBack(Event):
    """The run rolled back from ``from_step`` to the checkpoint of ``progress``, for ``reason``."""

    progress: Progress
    from_step: int
    reason: str


@dataclass(frozen=True, slots=True)
class RollBackSkipped(Event):
    """The run should have rolled back for ``reason``, but has no checkpoint that old: training continues unchanged."""

    progress: Progress
    reason: str


@dataclass(frozen=True, slots=True)
class DataStalled(Event):
    """Training waited ``seconds``, more than one, for the next batch, although batches are prefetched."""

    progress: Progress
    seconds: float


@dataclass(frozen=True, slots=True)
class DataDrifted(Event):
    """The data differ from the version ``reference``; ``verdict`` is a sentence.

    ``figures`` has the figures that moved: each with its name, measure, values, distance and level.
    """

    progress: Progress
    reference: str
    verdict: str
    figures: Sequence[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class RunStalled(Event):
    """Training showed no sign of life for ``seconds``, and continued; ``reason`` is the cause as far as it is known."""

    progress: Progress
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class DataEnded(Event):
    """Finite data have been trained on; the run stops after the handlers of this event."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class StopRequested(Event):
    """A request to end the run at this step boundary was accepted; ``is_early`` if it came from early stopping."""

    progress: Progress
    reason: str
    signal: int | None
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class RunFailed(Event):
    """An exception ends the run or its preparation; ``progress`` is the last complete step."""

    progress: Progress
    error: BaseException


@dataclass(frozen=True, slots=True)
class RunFinished(Event):
    """The run ended without an error; without ``RunStarted`` before if it was stopped during its preparation."""

    progress: Progress


@dataclass(frozen=True, slots=True)
class HandlerFailed(Event):
    """A handler of ``event`` raised an error; training continued."""

    event: str
    handler: str
    error: Exception
