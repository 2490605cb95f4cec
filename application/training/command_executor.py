"""Executes commands between two steps, and holds the state of the run that they change."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, final

from holdfast.domain.commands import (
    AcknowledgeArchive,
    AcknowledgeMove,
    AcknowledgeSave,
    AdjustResources,
    DropCopy,
    Evaluate,
    ReportDamage,
    ReportStall,
    RollBack,
    SaveCheckpoint,
    SplitBatch,
    StopEarly,
    StopRun,
)
from holdfast.domain.errors import TrainingError
from holdfast.domain.events import (
    ArchiveFailed,
    BatchSplit,
    CheckpointArchived,
    CheckpointMoved,
    CheckpointRejected,
    EvaluationCompleted,
    EvaluationProgressed,
    ResourcesAdjusted,
    RollBackSkipped,
    RolledBack,
    RunStalled,
    StopRequested,
    TextGenerated,
)
from holdfast.domain.resources.balance_policy import Knob
from holdfast.domain.training.step_outcome import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.checkpointer import Checkpointer
    from holdfast.application.data.feed import Feed
    from holdfast.application.inbox import Inbox
    from holdfast.application.training.evaluator import Evaluator
    from holdfast.application.training.generate import PromptSampler
    from holdfast.application.training.step_engine import DataRanks, StepEngine
    from holdfast.domain.commands import Command
    from holdfast.domain.events import Event
    from holdfast.domain.training.early_stopping import EarlyStopping
    from holdfast.ports.event_bus import EventBus

_REMEDY = "check the data that were read there, lower optimizer.learning_rate"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The mean loss of the held-out documents at ``step``, in nats a token."""

    step: int
    loss: float


@dataclass(slots=True)
class RunState:
    """The part of a run that changes: ``progress`` is always that of the parameters, so any save is of its step.

    ``measurement`` is the last evaluation of these parameters' history, ``stopped_by`` the command that ends the run.
    """

    progress: Progress = field(default_factory=Progress)
    measurement: Measurement | None = None
    stopped_by: StopRun | None = None


@dataclass(frozen=True, slots=True)
class LoopParts:
    """The objects that the loop and its commands work with."""

    feed: Feed
    engine: StepEngine
    evaluator: Evaluator
    sampler: PromptSampler
    checkpoints: Checkpointer
    bus: EventBus
    inbox: Inbox
    ranks: DataRanks


@final
class CommandExecutor:
    """Executes each command between steps, on every rank in the same order, and publishes its result.

    The error of a command propagates, and ends the run. ``early_stopping`` is the rule that the state of patience in
    the progress follows, None if no state is kept.
    """

    def __init__(self, state: RunState, parts: LoopParts, early_stopping: EarlyStopping | None = None) -> None:
        self._state = state
        self._early_stopping = early_stopping
        self._feed = parts.feed
        self._engine = parts.engine
        self._evaluator = parts.evaluator
        self._sampler = parts.sampler
        self._checkpoints = parts.checkpoints
        self._bus = parts.bus
        self._inbox = parts.inbox
        self._group = parts.ranks.group

    def execute_all(self) -> None:
        """Execute the commands of all ranks until no handler answers with another.

        Commands that concern steps which an earlier command of the same round took back are skipped.
        """
        while commands := self._group.agree(self._inbox.drain()):
            step = self._state.progress.step
            for command in commands:
                if self._state.progress.step == step or not command.is_stale_after_rollback:
                    self._execute(command)

    def roll_back(self, command: RollBack) -> bool:
        """Execute ``command``; return whether the run continues from an earlier state.

        Raises ``TrainingError`` if the run has rolled back as often as it may, or if there is no checkpoint that old
        and the command is not optional.
        """
        current = self._state.progress
        if current.step < command.step:
            return False  # another command has taken those steps back already
        restored = self._restore(command)
        if restored is None:
            self._bus.publish(RollBackSkipped(current, command.reason))
            return False
        self._state.progress, self._state.measurement = restored, None  # before anything else can fail
        cursor = self._feed.follow(restored.cursor, skip=command.skip)
        self._state.progress = replace(restored, cursor=cursor)
        self._bus.publish(RolledBack(self._state.progress, current.step, command.reason))
        return True

    def _execute(self, command: Command) -> None:
        match command:
            case SplitBatch(rows):
                self._split_batch(rows)
            case AdjustResources():
                self._adjust_resources(command)
            case Evaluate():
                self._evaluate()
            case SaveCheckpoint():
                self._save(command)
            case AcknowledgeSave():
                self._checkpoints.acknowledge(command)
            case DropCopy():
                self._checkpoints.drop_memory_copy()
            case RollBack():
                self.roll_back(command)
            case StopRun() | StopEarly():
                self._stop(command)
            case AcknowledgeArchive() | AcknowledgeMove() | ReportDamage() | ReportStall():
                self._bus.publish(_reported(command, self._state.progress))
            case _:
                raise TypeError(command)

    def _stop(self, command: StopRun | StopEarly) -> None:
        if isinstance(command, StopEarly):
            if command.step != self._state.progress.step or self._state.stopped_by is not None:
                return
            command = StopRun(command.reason, is_early=True)
        self._state.stopped_by = command
        self._bus.publish(StopRequested(self._state.progress, command.reason, command.signal, command.is_early))

    def _split_batch(self, rows: int) -> None:
        self._engine.micro_batch = rows
        progress = self._state.progress
        self._bus.publish(BatchSplit(progress, rows))
        reason = f"gradients are now accumulated over micro-batches of {rows} rows"
        self._checkpoints.weaken_reproducibility(progress, [reason])

    def _adjust_resources(self, command: AdjustResources) -> None:
        """Apply the change if the knob is one of the loop's; handlers of ``ResourcesAdjusted`` apply the rest."""
        match command.knob:
            case Knob.MICRO_BATCH:
                self._split_batch(command.after)
            case Knob.PREFETCH:
                self._feed.prefetch = command.after
            case Knob.THREADS:
                self._feed.threads = command.after
        progress = self._state.progress
        self._bus.publish(ResourcesAdjusted(progress, command.knob, command.before, command.after, command.reason))

    def _evaluate(self) -> None:
        if self._evaluator.has_documents:
            progress, rule = self._state.progress, self._early_stopping
            evaluation = self._evaluator.run(
                should_stop=lambda: self._inbox.stop_requested,
                refuse_empty=progress.step == 0,
                progressed=self._published_each_second(),
            )
            if evaluation is not None:
                self._state.measurement = Measurement(progress.step, evaluation.loss)
                if rule is None or not evaluation.lacks(rule.metric):
                    self._state.progress = progress.evaluated(evaluation.metrics, rule)
                self._bus.publish(EvaluationCompleted(self._state.progress, evaluation))
        if samples := self._sampler.run(should_stop=lambda: self._inbox.stop_requested):
            self._bus.publish(TextGenerated(self._state.progress, samples))

    def _published_each_second(self) -> Callable[[str, int, int], object]:
        """Return a function that publishes the progress of an evaluation, at once and then about once a second."""
        due = 0.0

        def publish(name: str, done: int, total: int) -> None:
            nonlocal due
            if (now := time.monotonic()) >= due:
                due = now + 1.0
                self._bus.publish(EvaluationProgressed(self._state.progress, name, done, total))

        return publish

    def _save(self, command: SaveCheckpoint) -> None:
        progress, measured = self._state.progress, self._state.measurement
        loss = measured.loss if measured is not None and measured.step == progress.step else None
        self._checkpoints.save(progress, command.reason, evaluation_loss=loss)

    def _restore(self, command: RollBack) -> Progress | None:
        """Restore the state that ``command`` names; return the progress from which the run continues.

        None, with nothing changed, if there is no checkpoint that old and the command is optional.
        """
        current = self._state.progress
        num_rollbacks = len(current.health.returns)
        if command.limit is not None and num_rollbacks >= command.limit:
            msg = f"{command.reason}, after {num_rollbacks} roll-backs, which is the limit: {_REMEDY}"
            msg += ", or allow more with recovery.health.max_rollbacks"
            raise TrainingError(msg)
        restored = None if command.rather is None else self._checkpoints.roll_back(command.rather)
        restored = restored or self._checkpoints.roll_back(command.step)
        if restored is None and not command.optional:
            step = command.step
            msg = f"{command.reason}, and there is no checkpoint of step {step} or before to roll back to: {_REMEDY}, "
            msg += "or save more often with state_store.every"
            raise TrainingError(msg)
        return restored if restored is None or command.skip is None else current.rolled_back_to(restored)


def _reported(command: AcknowledgeArchive | AcknowledgeMove | ReportDamage | ReportStall, progress: Progress) -> Event:
    """Return the event that a thread reported with ``command``: only the loop publishes."""
    match command:
        case AcknowledgeArchive(step, location, seconds, None, deleted):
            return CheckpointArchived(step, location, seconds, deleted)
        case AcknowledgeArchive(step, problem=problem):
            return ArchiveFailed(step, str(problem))
        case AcknowledgeMove(step, source, target, reason):
            return CheckpointMoved(step, source, target, reason)
        case ReportDamage(name, reason, location):
            return CheckpointRejected(name, reason, location)
        case ReportStall(seconds, reason):
            return RunStalled(progress, seconds, reason)
