"""The training loop: batches, optimizer steps, events."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from holdfast.application.training.command_executor import CommandExecutor, RunState
from holdfast.application.training.step_engine import StepAbandoned
from holdfast.domain.commands import RollBack, StopRun
from holdfast.domain.errors import DataError, LeaveAtOnce, OutOfMemory, RestartNeeded, StepTorn
from holdfast.domain.events import (
    DataEnded,
    DataStalled,
    MemoryExhausted,
    RunFailed,
    RunFinished,
    RunStarted,
    StepCompleted,
    UpdateDropped,
)
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from holdfast.application.training.command_executor import LoopParts
    from holdfast.domain.data.batch import Batch
    from holdfast.domain.training.step_outcome import Progress, StepOutcome
    from holdfast.domain.training.train_plan import TrainPlan

_log = logging.getLogger(__name__)
_MOST_IDLE = 128  # steps without any target at the beginning of a run
_STALL_SECONDS = 1.0  # a wait that is worth a report; the first batch may take longer


@dataclass(frozen=True, slots=True)
class StepQuorum:
    """The ranks before a step: the number with a batch, and the number that gave up waiting because the run stops.

    ``num_targets``, the terms of the mean loss, and ``num_tokens`` are the sums over the batches of all ranks,
    each batch once.
    """

    num_ready: int
    num_gave_up: int
    num_targets: int
    num_tokens: int


@final
class TrainRun:
    """Takes steps, publishes events, executes commands between steps, and knows no handler.

    One call of ``run`` is one process's part of a training run, from the newest valid checkpoint to the end of the
    budget, a ``StopRun`` or an error.
    """

    def __init__(self, plan: TrainPlan, parts: LoopParts) -> None:
        self._plan = plan
        self._feed = parts.feed
        self._engine = parts.engine
        self._checkpoints = parts.checkpoints
        self._bus = parts.bus
        self._inbox = parts.inbox
        self._group = parts.ranks.group
        self._peers = parts.ranks.mesh.peers
        self._state = RunState()
        self._commands = CommandExecutor(self._state, parts, plan.early_stopping)
        self._has_stepped = False

    @property
    def stopped_by(self) -> StopRun | None:
        """Return the command that ended the run, None if its budget did."""
        return self._state.stopped_by

    @property
    def _progress(self) -> Progress:
        return self._state.progress

    def run(self) -> Progress:
        """Train until the end; return the progress. Raises any error of training after ``RunFailed`` is published."""
        self._state.progress = self._checkpoints.restore_latest()
        try:
            self._feed.seek(self._progress.cursor)
            self._bus.publish(RunStarted(self._progress))
            self._commands.execute_all()
            while not self._is_over():
                self._advance()
                self._commands.execute_all()
            self._checkpoints.flush()
            self._commands.execute_all()
        except (LeaveAtOnce, KeyboardInterrupt):  # the latter may come between a step and its progress
            raise
        except BaseException as error:  # a panic of a Rust library is not an Exception
            self._bus.publish(RunFailed(self._progress, error))
            raise
        finally:
            self._checkpoints.close()
            self._feed.close(is_urgent=self._inbox.stop_requested)
        self._bus.publish(RunFinished(self._progress))
        return self._progress

    def _is_over(self) -> bool:
        return self.stopped_by is not None or self._plan.budget.is_spent_by(self._progress)

    def _advance(self) -> None:
        """Take one batch and one step; the batch is the next one again if the run stops or memory runs out."""
        batch = self._feed.next(lambda: self._inbox.stop_requested)
        supply = self._feed.supply
        quorum = self._quorum(batch)
        if quorum.num_gave_up:
            return self._put_back(batch)
        if batch is None or quorum.num_ready < self._group.size:
            return self._end_data()
        if supply.wait_seconds > _STALL_SECONDS and self._has_stepped:
            self._bus.publish(DataStalled(self._progress, supply.wait_seconds))
        try:
            outcome = self._step(batch, quorum)
        except StepAbandoned as abandoned:
            if str(abandoned):
                _log.warning("the step that was under way is left to the next start: %s", abandoned)
            return self._put_back(batch)
        except (OutOfMemory, StepTorn) as error:
            out_of_memory = error.with_traceback(None)  # its frames would hold the step's tensors
        else:
            self._has_stepped = True
            figures = self._engine.figures
            return self._bus.publish(StepCompleted(self._progress, replace(outcome, supply=supply), figures))
        self._put_back(batch)
        return self._recover(out_of_memory, min(self._engine.micro_batch, batch.num_rows))

    def _quorum(self, batch: Batch | None) -> StepQuorum:
        gave_up = int(self._feed.gave_up)
        figures = (0, gave_up, 0, 0) if batch is None else (1, 0, batch.num_terms, batch.num_tokens)
        num_ready, num_gave_up, num_targets, num_tokens = map(int, self._group.sum(figures))
        return StepQuorum(num_ready, num_gave_up, num_targets // self._peers, num_tokens // self._peers)

    def _step(self, batch: Batch, quorum: StepQuorum) -> StepOutcome:
        return self._engine.step(
            batch,
            step=self._progress.step + 1,
            learning_rate=self._plan.schedule.at(self._progress),
            num_targets=quorum.num_targets,
            num_tokens=quorum.num_tokens,
            should_stop=self._is_grace_short,
            may_fail=lambda: self._group.size == 1 and self._inbox.signal is not None,
            on_applied=lambda loss, dropped: self._complete_step(batch, quorum.num_tokens, loss, dropped),
        )

    def _complete_step(self, batch: Batch, num_tokens: int, loss: float | None, dropped: str | None) -> None:
        """Set the progress to that of the new parameters, so that a save after any later failure is of this step."""
        if loss is None:
            after = self._progress.after_idle(batch, num_tokens)
            if after.step >= _MOST_IDLE or self._plan.budget.is_spent_by(after):
                _check_has_trained(after)
            self._state.progress = after
            return
        self._state.progress = self._progress.after(batch, num_tokens, loss if dropped is None else None)
        if dropped is not None:
            self._bus.publish(UpdateDropped(self._progress, dropped))

    def _put_back(self, batch: Batch | None) -> None:
        if batch is not None:
            self._feed.push_back(batch)

    def _end_data(self) -> None:
        _check_has_trained(self._progress)
        self._bus.publish(DataEnded(self._progress))
        self._commands.execute_all()
        self._inbox.post(StopRun("the data ended"))

    def _recover(self, error: OutOfMemory | StepTorn, rows: int) -> None:
        """Report that a step ran out of memory in micro-batches of ``rows`` rows, so that handlers reduce them.

        Raises ``OutOfMemory`` if no handler answers, and ``RestartNeeded`` if only a new process can repeat the step.
        """
        self._bus.publish(MemoryExhausted(self._progress, rows, str(error)))
        if not self._inbox:
            raise does_not_fit(error, rows)
        if isinstance(error, StepTorn) and self._group.size == 1 and (step := self._progress.step):
            command = RollBack(step, "memory ran out in the middle of an update", optional=True)
            if self._commands.roll_back(command):
                return
        if obstacle := self._engine.retry_obstacle(error, num_ranks=self._group.size):
            msg = f"step {self._progress.step + 1} does not fit into the memory of rank {self._group.rank} in "
            msg += f"micro-batches of {rows} rows ({error}), and {obstacle}: run the same command again; it will use "
            msg += "smaller micro-batches"
            raise RestartNeeded(msg)

    def _is_grace_short(self) -> bool:
        """Return whether the grace period leaves too little time to finish this step and still save."""
        waited = self._inbox.seconds_since_signal
        return self._group.size == 1 and waited is not None and self._plan.grace.is_short(waited)


def _check_has_trained(progress: Progress) -> None:
    """Raise ``DataError`` if no batch up to ``progress`` had a target, so that the parameters are those of step 0."""
    if progress.step and not progress.health.losses:
        msg = (
            f"none of the {counted(progress.step, 'batch', 'batches')} so far holds a token that the model is to "
            "predict, so nothing was trained: look at the data by the command data show; the tokenizer may drop the "
            "texts, or a loss mask leave everything out"
        )
        raise DataError(msg)


def does_not_fit(error: OutOfMemory | StepTorn, rows: int) -> OutOfMemory:
    """Return the error of a step that cannot be repeated in smaller micro-batches than ``rows``."""
    msg = f"a step does not fit into memory in micro-batches of {rows} rows: {error}"
    if rows == 1:
        msg += "; recompute activations (model.gradient_checkpointing=full), or begin another run with a smaller model "
        msg += "or shorter rows"
    return OutOfMemory(msg)
