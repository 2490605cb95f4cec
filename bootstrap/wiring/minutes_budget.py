"""Turns ``run.budget.minutes`` into steps, once, before the first step of a run."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from holdfast.application.resources.micro_batch_search import full_rows, learn_nothing
from holdfast.application.training.loop import does_not_fit
from holdfast.application.training.piece_losses import PieceLosses
from holdfast.bootstrap.run_folder.decided_steps import name_of_minutes
from holdfast.bootstrap.wiring.process_group import mesh_of
from holdfast.domain.counting import counted
from holdfast.domain.errors import ConfigurationError, OutOfMemory, RestartNeeded
from holdfast.domain.training.run_forecast import TrialTimes, steps_within

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.handlers.adapt_micro_batch import AdaptMicroBatch
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.wiring.run_parts import ModelParts
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.budget import Budget
    from holdfast.ports.state_store import StateStore

_MEASURING = "measuring the time of a step"
_TRIALS, _SECONDS_OF_TRIALS = 4, 8.0
_UPDATE_SHARE = 0.15  # of a step, for the update itself, data, metrics, checkpoints and a machine that slows down
_SECONDS_AT_END = 5.0  # the last checkpoint, the sample and the report
_SECONDS_A_MINUTE = 60.0


@final
@dataclass(frozen=True, slots=True)
class MinutesBudget:
    """Measures a step and an evaluation of a run, and decides how many steps fit into its minutes.

    Nothing is learned, so the result is that of a run with as many steps. ``adapt`` remembers the micro-batches that do
    not fit into memory, and ``started`` is the start of the process on the clock ``time.monotonic``. All ranks call
    ``decide``.
    """

    parts: ModelParts
    folder: SharedRunFolder
    adapt: AdaptMicroBatch
    started: float
    report: Callable[[str], object]
    show: ShowPhase

    def decide(self, budget: Budget, rows: int, store: StateStore) -> int:
        """Limit ``budget`` to the steps that fit into its minutes; a run that has decided before keeps its steps.

        The minutes begin with the process, after the steps of the newest checkpoint in ``store``. ``rows`` are those of
        a micro-batch; returns the rows to begin with, fewer than these if they did not fit. Raises
        ``ConfigurationError`` if a pass over a batch cannot be tried without a trace, ``OutOfMemory`` if one row does
        not fit, and ``RestartNeeded`` if only new processes can try fewer rows.
        """
        if budget.minutes is None:
            return rows
        name = name_of_minutes(budget.minutes)
        if (known := self.folder.decided(name)) is None:
            self._refuse_traces()
            self.show(_MEASURING)
            rows, step = self._fitting(rows)
            times = self._times(step)
            seconds = self.started + budget.minutes * _SECONDS_A_MINUTE - time.monotonic()
            every = self.parts.settings.evaluation.every
            steps = steps_within(seconds, times, evaluation_every=every, save_every=0)
            taken = 0 if self.parts.process_group.rank else _newest_step(store)
            after = f" after step {taken:,}" if taken else ""
            reason = f"{counted(steps, 'step')} of about {times.step:.2g} s fit{after}"
            known = self.folder.decide(name, str(taken + steps), reason)
        budget.decide(int(known))
        return rows

    def _refuse_traces(self) -> None:
        if not self.parts.trainable.is_retry_safe:
            msg = f"run.budget.minutes cannot be measured with optimizer.kind={self.parts.settings.optimizer.kind}, "
            msg += "which takes no step on trial: set run.budget.steps or run.budget.tokens"
            raise ConfigurationError(msg)

    def _fitting(self, rows: int) -> tuple[int, float]:
        """Return the rows of a micro-batch that fit into memory, at most ``rows``, and the seconds of a step."""
        while True:
            try:
                return rows, self._seconds_of_step(rows)
            except OutOfMemory as error:
                shortage = error.with_traceback(None)  # its frames would hold the tensors of the trial
            fewer, group = self.adapt.reduce(rows), self.parts.process_group
            if fewer >= rows:
                raise does_not_fit(shortage, rows)
            if group.size > 1:
                msg = f"a step does not fit into the memory of rank {group.rank} in micro-batches of {rows} rows "
                msg += f"({shortage}), and the other ranks are waiting in the middle of it: run the same command "
                msg += "again; it will use smaller micro-batches"
                raise RestartNeeded(msg)
            self.report(f"micro-batches of {fewer}, not {rows}: more did not fit into memory when a step was tried")
            rows = fewer

    def _seconds_of_step(self, rows: int) -> float:
        """Return the median seconds in which all micro-batches of a step pass forward and backward."""
        settings, trainable, group = self.parts.settings, self.parts.trainable, self.parts.process_group
        ranks = mesh_of(settings.distributed, group.size).data_ranks
        num_parts = math.ceil(settings.optimizer.num_rows / ranks / rows)
        part = full_rows(min(rows, max(1, settings.optimizer.num_rows // ranks)), settings.data.row_length)
        learn_nothing(trainable, part, times=1)  # builds kernels, allocates memory
        measured, began = list[float](), time.perf_counter()
        for _ in range(_TRIALS):
            self.show(_MEASURING)
            since = time.perf_counter()
            learn_nothing(trainable, part, times=num_parts)
            measured.append(time.perf_counter() - since)
            if group.size == 1 and time.perf_counter() - began > _SECONDS_OF_TRIALS:
                break
        return statistics.median(measured)

    def _times(self, step: float) -> TrialTimes:
        """Return the times of the parts of the run that are still to come, with saves as a share of the steps."""
        evaluation = self._seconds_of_evaluation()
        return TrialTimes(
            start=0.0,
            first_evaluation=evaluation if self.parts.settings.evaluation.at_start else 0.0,
            step=step * (1 + _UPDATE_SHARE),
            evaluation=evaluation,
            save=0.0,
            end=_SECONDS_AT_END,
        )

    def _seconds_of_evaluation(self) -> float:
        settings, group = self.parts.settings, self.parts.process_group
        if not (settings.data.holdout or settings.data.folds or settings.evaluation.sets):
            return 0.0
        ranks = mesh_of(settings.distributed, group.size).data_ranks
        losses = PieceLosses(self.parts.trainable, num_ranks=group.size)
        held_out = full_rows(settings.evaluation.batch_size, settings.data.row_length)
        losses.total(held_out)  # finds the rows that fit
        since = time.perf_counter()
        losses.total(held_out)
        batches = math.ceil(settings.evaluation.max_tokens / held_out.num_tokens / ranks)
        return batches * (time.perf_counter() - since)


def _newest_step(store: StateStore) -> int:
    return max((each.progress.step for each in store.list()), default=0)
