"""The training loop."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, final

from holdfast.application.training.adjust_knobs import turn
from holdfast.application.training.facts import fact_of
from holdfast.application.training.going_back import go_back
from holdfast.application.training.out_of_memory import refuse_other_try, without_remedy
from holdfast.application.training.step_engine import StepGivenUp
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
    StopRun,
)
from holdfast.domain.errors import LeaveAtOnce, OutOfMemory, StepTorn
from holdfast.domain.events import (
    BatchSplit,
    DataEnded,
    DataStalled,
    EvaluationCompleted,
    MemoryExhausted,
    ResourcesAdjusted,
    RollBackSkipped,
    RolledBack,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
    StopRequested,
    UpdateDropped,
)
from holdfast.domain.resources.knobs import Knob
from holdfast.domain.training.progress import Progress

if TYPE_CHECKING:
    from holdfast.application.checkpointing.checkpointer import Checkpoints
    from holdfast.application.data.feed import Feed
    from holdfast.application.inbox import Inbox
    from holdfast.application.training.evaluator import Evaluator
    from holdfast.application.training.step_engine import Engine
    from holdfast.domain.commands import Command
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.training.train_plan import TrainPlan
    from holdfast.ports.event_bus import EventBus
    from holdfast.ports.process_group import ProcessGroup


_STALL_SECONDS = 1.0  # a wait that a person would want to know of; the first batch may take longer


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
        self._progress = Progress()
        self.stopped_by: StopRun | None = None

    def run(self) -> Progress:
        """Train until the end; return how far the run has come."""
        self._progress = self._checkpoints.restore_latest()
        try:
            self._feed.seek(self._progress.cursor)
            self._bus.publish(RunStarted(self._progress))
            self._obey_all()
            while not self._is_over():
                self._advance(self._progress)
                self._obey_all()
                if self._is_over():
                    self._obey_all()  # a group may return what the last step brought only now
            self._checkpoints.flush()
            self._obey_all()
        except (LeaveAtOnce, KeyboardInterrupt):  # the latter may come between a step and its progress
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            self._bus.publish(RunFailed(self._progress, error))
            raise
        finally:
            self._checkpoints.close()
            self._feed.close()
        self._bus.publish(RunFinished(self._progress))
        return self._progress

    def _is_over(self) -> bool:
        return self.stopped_by is not None or self._plan.budget.is_spent_by(self._progress)

    def _advance(self, progress: Progress) -> None:
        batch = self._feed.next(lambda: self._inbox.stop_requested)
        supply = self._feed.supply
        there, not_waiting, *totals = self._totals(batch)
        if not_waiting:
            return self._leave(batch)
        if batch is None or there < self._group.size:
            return self._end(progress)
        if supply.wait_seconds > _STALL_SECONDS and self._has_begun:
            self._bus.publish(DataStalled(progress, supply.wait_seconds))
        try:
            rate = self._plan.schedule.at(progress)
            outcome = self._engine.step(
                batch,
                step=progress.step + 1,
                learning_rate=rate,
                totals=(totals[0], totals[1]),
                is_given_up=self._must_hurry,
                on_applied=lambda loss, dropped: self._complete_step(batch, totals[1], loss, dropped),
            )
        except StepGivenUp:
            return self._leave(batch)
        except (OutOfMemory, StepTorn) as error:
            shortage = error.with_traceback(None)  # its frames would hold the step's tensors
        else:
            self._has_begun = True
            self._bus.publish(StepCompleted(self._progress, replace(outcome, supply=supply)))
            return None
        self._feed.push_back(batch)
        return self._fall_short(progress, min(self._engine.micro_batch, batch.num_rows), shortage)

    def _end(self, progress: Progress) -> None:
        self._bus.publish(DataEnded(progress))
        self._obey_all()
        self._inbox.post(StopRun("the data ended"))

    def _fall_short(self, progress: Progress, rows: int, shortage: OutOfMemory | StepTorn) -> None:
        self._bus.publish(MemoryExhausted(progress, rows, str(shortage)))
        if not self._inbox:
            raise without_remedy(shortage, rows)
        if isinstance(shortage, StepTorn) and self._group.size == 1 and progress.step:
            command = RollBack(progress.step, "memory ran out in the middle of an update", optional=True)
            if self._roll_back(command):
                return
        where = f"step {progress.step + 1} does not fit into the memory of rank {self._group.rank}"
        where += f" in micro-batches of {rows} rows"
        refuse_other_try(shortage, where, num_ranks=self._group.size, is_retry_safe=self._engine.is_retry_safe)

    def _totals(self, batch: Batch | None) -> tuple[int, int, int, int]:
        """Return how many ranks have a batch, how many do not wait for theirs, and the targets and tokens of all."""
        gave_up = int(self._feed.gave_up)
        figures = (0, gave_up, 0, 0) if batch is None else (1, 0, batch.num_targets, batch.num_tokens)
        there, not_waiting, num_targets, num_tokens = map(int, self._group.sum(figures))
        return there, not_waiting, num_targets, num_tokens

    def _leave(self, batch: Batch | None) -> None:
        """Make ``batch`` the next one again: the run is to stop before its step."""
        if batch is not None:
            self._feed.push_back(batch)

    def _complete_step(self, batch: Batch, num_tokens: int, loss: float, dropped: str | None) -> None:
        """Let the progress be what the parameters are: whatever fails from here on, a save is of this step."""
        self._progress = self._progress.after(batch, num_tokens, loss if dropped is None else None)
        if dropped is not None:
            self._bus.publish(UpdateDropped(self._progress, dropped))

    def _must_hurry(self) -> bool:
        """Return whether a step that is not complete is in the way of a save within the grace period."""
        waited = self._inbox.seconds_since_signal
        return self._group.size == 1 and waited is not None and self._plan.grace.is_short(waited)

    def _obey_all(self) -> None:
        """Obey the same commands, in the same order, on every rank, until no handler answers with another."""
        while commands := self._group.agree(self._inbox.drain()):
            step = self._progress.step
            for command in commands:
                if self._progress.step == step or not isinstance(command, (Evaluate, RollBack, SaveCheckpoint)):
                    self._obey(command, self._progress)  # but for what was asked of steps that are taken back

    def _obey(self, command: Command, progress: Progress) -> None:  # noqa: C901  a table of commands
        match command:
            case SplitBatch(rows):
                self._engine.micro_batch = rows
                self._bus.publish(BatchSplit(progress, rows))
                self._checkpoints.weaken(progress, [f"a batch is now summed in parts of {rows} rows"])
            case AdjustResources(knob, before, after, reason):
                if knob is Knob.MICRO_BATCH:
                    self._obey(SplitBatch(after), progress)
                turn(knob, after, self._feed)
                self._bus.publish(ResourcesAdjusted(progress, knob, before, after, reason))
            case Evaluate():
                evaluation = self._evaluator.run(should_stop=lambda: self._inbox.stop_requested)
                if evaluation is not None:
                    self._measured = progress.step, evaluation.loss
                    self._bus.publish(EvaluationCompleted(progress, evaluation))
            case SaveCheckpoint(reason):
                step, loss = self._measured
                self._checkpoints.save(progress, reason, evaluation_loss=loss if step == progress.step else None)
            case AcknowledgeSave():
                self._checkpoints.acknowledge(command)
            case AcknowledgeArchive() | AcknowledgeMove() | ReportDamage() | ReportStall():
                self._bus.publish(fact_of(command, progress))
            case DropCopy():
                self._checkpoints.relieve_memory()
            case RollBack():
                self._roll_back(command)
            case StopRun(reason, signal):
                self.stopped_by = command
                self._bus.publish(StopRequested(progress, reason, signal))
            case _:
                raise TypeError(command)

    def _roll_back(self, command: RollBack) -> bool:
        """Obey ``command``; return whether the run goes on from an earlier state."""
        left = self._progress
        if left.step < command.step:
            return False  # what the command is about was taken back by another one
        restored = go_back(command, left, self._checkpoints)
        if restored is None:
            self._bus.publish(RollBackSkipped(left, command.reason))
            return False
        self._progress, self._measured = restored, (-1, 0.0)
        self._progress = replace(restored, cursor=self._feed.follow(restored.cursor, skip=command.skip))
        self._bus.publish(RolledBack(self._progress, left.step, command.reason))
        return True
