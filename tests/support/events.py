"""Examples of every event, and the step that they are about."""

from holdfast.domain.checkpoints.tiers import Tier
from holdfast.domain.commands import SaveReason
from holdfast.domain.data.cursor import Cursor
from holdfast.domain.errors import DataError
from holdfast.domain.events import (
    ArchiveFailed,
    BatchSplit,
    CheckpointArchived,
    CheckpointFailed,
    CheckpointMoved,
    CheckpointRejected,
    CheckpointSaved,
    CheckpointStarted,
    CompilationStarted,
    ContractWeakened,
    DataDrifted,
    DataEnded,
    DataStalled,
    EvaluationCompleted,
    EvaluationProgressed,
    HandlerFailed,
    MemoryExhausted,
    PreparationEnded,
    PreparationProgressed,
    PreparationStarted,
    ResourcesAdjusted,
    RollBackSkipped,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStalled,
    RunStarted,
    StepCompleted,
    StopRequested,
    SuiteEvaluated,
    SuiteFailed,
    TextGenerated,
    UpdateDropped,
)
from holdfast.domain.phase import PreparationPhase
from holdfast.domain.resources.balance_policy import Knob
from holdfast.domain.training.step_outcome import DataSupply, Evaluation, Progress, StepOutcome
from holdfast.domain.training.text_generation import GeneratedText

PROGRESS = Progress(7, 700, Cursor(28))
OUTCOME = StepOutcome(
    losses=[3.0, 5.0],
    num_targets=4,
    num_tokens=100,
    grad_norm=1.5,
    learning_rate=0.1,
    micro_batch=2,
    step_seconds=0.75,
    supply=DataSupply(0.25, batches_ready=3, bytes_read=9000, read_retries=2, rejected=1),
)
EXAMPLES = [
    RunStarted(PROGRESS),
    StepCompleted(PROGRESS, OUTCOME),
    MemoryExhausted(PROGRESS, 8, "no room"),
    BatchSplit(PROGRESS, 4),
    EvaluationCompleted(PROGRESS, Evaluation(8.0, 4, 16)),
    CheckpointSaved(PROGRESS, "/runs/a/checkpoint-7", SaveReason.FINAL, 0.5, 0.5),
    CheckpointRejected("checkpoint-9", "bad hash", "/runs/a/quarantine/checkpoint-9"),
    StopRequested(PROGRESS, "SIGTERM", 15),
    RunFailed(PROGRESS, DataError("line 3 is no JSON")),
    RunFinished(PROGRESS),
    HandlerFailed("StepCompleted", "RecordMetrics.on_step", OSError("disk full")),
    DataEnded(PROGRESS),
    CheckpointStarted(PROGRESS, SaveReason.FINAL),
    DataStalled(PROGRESS, 2.5),
    CheckpointFailed(PROGRESS, SaveReason.PERIODIC, "the disk is full: free some space there"),
    ContractWeakened(PROGRESS, ["ranks was 1 and is 2"]),
    CheckpointArchived(7, "s3://bucket/run/checkpoint-7", 1.5),
    RunStalled(PROGRESS, 61.0, "rank 1 tells nothing any more"),
    CheckpointMoved(7, Tier.DISK, Tier.ARCHIVE, "the disk is nearly full"),
    ArchiveFailed(7, "s3://bucket cannot be reached: look at the network"),
    ResourcesAdjusted(PROGRESS, Knob.PREFETCH, 4, 8, "training waited for data 43% of its time"),
    UpdateDropped(PROGRESS, "the loss is nan"),
    TextGenerated(PROGRESS, [GeneratedText("Row,", " row your boat", 3), GeneratedText("Ah", "!", 4)]),
    SuiteEvaluated(7, {"arc": {"acc": 0.25, "acc_stderr": 0.125}, "piqa": {"acc_norm": 0.5}}, 61.0),
    SuiteFailed(7, "there is no task 'ark'"),
    RolledBack(PROGRESS, 12, "the loss rose from 2.1 to 7.5"),
    RollBackSkipped(PROGRESS, "the loss rose from 2.1 to 7.5"),
    DataDrifted(PROGRESS, "4f1c2a", "tokens a document moved from 210 to 420", [{"name": "tokens", "distance": 0.4}]),
    PreparationStarted(PreparationPhase.TOKENS),
    PreparationProgressed(PreparationPhase.TOKENS, "tokenizing 7.6 MiB", 1.5, 4e6, 8e6, "B"),
    PreparationEnded(PreparationPhase.TOKENS, 3.0),
    EvaluationProgressed(PROGRESS, "songs", 100, 400),
    CompilationStarted(2, 12.5),
]


def at(step):
    """Return the event of ``step``, with 100 tokens a step."""
    return StepCompleted(Progress(step, step * 100), OUTCOME)


def orders(handler, inbox, steps):
    """Return what ``handler`` orders in answer to each of ``steps``."""
    answers = []
    for event in steps:
        handler(event)
        answers.append(inbox.drain())
    return answers
