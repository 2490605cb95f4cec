"""The training loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from domain.commands import Evaluate, SaveCheckpoint, SplitBatch, StopRun
from domain.errors import OutOfMemory
from domain.events import (
    BatchSplit,
    DataEnded,
    DataStalled,
    EvaluationCompleted,
    MemoryExhausted,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
    StopRequested,
)

if TYPE_CHECKING:
    from application.checkpoints import Checkpoints
    from application.engine import Engine
    from application.evaluate import Evaluator
    from application.feed import Feed
    from application.inbox import Inbox
    from domain.batch import Batch
    from domain.budget import Budget
    from domain.commands import Command
    from domain.progress import Progress
    from domain.schedule import Schedule
    from ports.event_bus import EventBus
    from ports.process_group import ProcessGroup


_STALL_SECONDS = 1.0  # a wait that a person would want to know of; the first batch may take longer


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """How long to train and with which learning rates."""

    budget: Budget
    schedule: Schedule


@final
class TrainRun:
    """Publishes what happens, obeys commands between steps, and knows no handler.

    One run of ``run`` is one process's share of a training run, from the newest valid checkpoint to the end of the
    budget, a ``StopRun`` or an error. ``stopped_by`` tells which command ended it, None if the budget did.
    """

    def __init__(
        self,
        *,
        plan: TrainPlan,
        feed: Feed,
        engine: Engine,
        evaluator: Evaluator,
        checkpoints: Checkpoints,
        bus: EventBus,
        inbox: Inbox,
        group: ProcessGroup,
    ) -> None:
        self._plan = plan
        self._feed = feed
        self._engine = engine
        self._evaluator = evaluator
        self._checkpoints = checkpoints
        self._bus = bus
        self._inbox = inbox
        self._group = group
        self._has_begun = False
        self._measured = -1, 0.0
        self.stopped_by: StopRun | None = None

    def run(self) -> Progress:
        """Train until the end; return how far the run has come."""
        progress = self._checkpoints.restore_latest()
        try:
            self._feed.seek(progress.cursor)
            self._bus.publish(RunStarted(progress))
            self._obey_all(progress)
            while not (self._plan.budget.is_spent_by(progress) or self.stopped_by):
                progress = self._advance(progress)
                self._obey_all(progress)
            self._obey_all(progress)  # a group may return what the last step brought only now
            self._checkpoints.flush()
        except Exception as error:
            self._bus.publish(RunFailed(progress, error))
            raise
        finally:
            self._feed.close()
        self._bus.publish(RunFinished(progress))
        return progress

    def _advance(self, progress: Progress) -> Progress:
        batch = self._feed.next()
        supply = self._feed.supply
        totals = self._totals(batch)
        if batch is None or totals is None:
            self._bus.publish(DataEnded(progress))
            self._obey_all(progress)
            self._inbox.post(StopRun("the data ended"))
            return progress
        if supply.wait_seconds > _STALL_SECONDS and self._has_begun:
            self._bus.publish(DataStalled(progress, supply.wait_seconds))
        try:
            rate = self._plan.schedule.at(progress)
            outcome = self._engine.step(batch, step=progress.step + 1, learning_rate=rate, totals=totals)
        except OutOfMemory as error:
            shortage = error.with_traceback(None)  # its frames would hold the step's tensors
        else:
            self._has_begun = True
            progress = progress.after(batch, outcome.num_tokens)
            self._bus.publish(StepCompleted(progress, replace(outcome, supply=supply)))
            return progress
        self._feed.push_back(batch)
        rows = min(self._engine.micro_batch, batch.num_rows)
        if self._group.size > 1:
            msg = (
                f"a step does not fit into the memory of rank {self._group.rank} in micro-batches of {rows} rows "
                f"({shortage}), and the others wait in its middle: set optimizer.micro_batch={max(1, rows // 2)}"
            )
            raise OutOfMemory(msg)
        self._bus.publish(MemoryExhausted(progress, rows, str(shortage)))
        if not self._inbox:
            msg = f"a step does not fit into memory in micro-batches of {rows} rows: {shortage}"
            raise OutOfMemory(msg)
        return progress

    def _totals(self, batch: Batch | None) -> tuple[int, int] | None:
        """Return the targets and tokens of all ranks' batches, None once a rank's data have ended: then all end."""
        figures = (0, 0, 0) if batch is None else (1, batch.num_targets, batch.num_tokens)
        there, num_targets, num_tokens = map(int, self._group.sum(figures))
        return (num_targets, num_tokens) if there == self._group.size else None

    def _obey_all(self, progress: Progress) -> None:
        """Obey the same commands, in the same order, on every rank, until no handler answers with another."""
        while commands := self._group.agree(self._inbox.drain()):
            for command in commands:
                self._obey(command, progress)

    def _obey(self, command: Command, progress: Progress) -> None:
        match command:
            case SplitBatch(rows):
                self._engine.micro_batch = rows
                self._bus.publish(BatchSplit(progress, rows))
            case Evaluate():
                evaluation = self._evaluator.run(should_stop=lambda: self._inbox.stop_requested)
                if evaluation is not None:
                    self._measured = progress.step, evaluation.loss
                    self._bus.publish(EvaluationCompleted(progress, evaluation))
            case SaveCheckpoint(reason):
                step, loss = self._measured
                self._checkpoints.save(progress, reason, evaluation_loss=loss if step == progress.step else None)
            case StopRun(reason, signal):
                self.stopped_by = command
                self._bus.publish(StopRequested(progress, reason, signal))
            case _:
                raise TypeError(command)
