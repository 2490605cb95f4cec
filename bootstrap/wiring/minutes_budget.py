"""Turns ``run.budget.minutes`` into steps, once, before the first step of a run."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.application.resources.micro_batch_search import full_rows, learn_nothing
from holdfast.bootstrap.run_folder.decided_steps import name_of_choice
from holdfast.bootstrap.wiring.process_group import mesh_of
from holdfast.domain.counting import counted
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.wiring.run_parts import ModelParts
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.budget import Budget

_TRIALS, _SECONDS_OF_TRIALS = 4, 8.0
_UPDATE_SHARE = 0.15  # of a step, for the update itself, waiting for data, metrics and a machine that slows down
_SECONDS_AT_END = 5.0  # the last checkpoint, the sample and the report
_SECONDS_A_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a forward and backward pass over a batch, and of an evaluation."""

    step: float
    evaluation: float

    def steps_in(self, seconds: float, *, evaluation_every: int, is_evaluated_at_start: bool) -> int:
        """Return the steps that fit into ``seconds`` with their evaluations, at least one."""
        evaluations = 1 + is_evaluated_at_start
        room = seconds - _SECONDS_AT_END - evaluations * self.evaluation
        between = self.evaluation / evaluation_every if evaluation_every else 0.0
        return max(1, math.floor(room / (self.step * (1 + _UPDATE_SHARE) + between)))


def decide_steps(
    parts: ModelParts,
    rows: int,
    budget: Budget,
    folder: SharedRunFolder,
    started: float,
    *,
    show: ShowPhase,
) -> None:
    """Limit ``budget`` to the steps that fit into its minutes; a run that has decided before keeps its steps.

    ``rows`` are those of a micro-batch, and ``started`` is the start of the process on the clock ``time.monotonic``.
    Nothing is learned, so the result is that of a run with as many steps. All ranks call this. Raises
    ``ConfigurationError`` if a pass over a batch cannot be tried without a trace.
    """
    if budget.minutes is None:
        return
    name = name_of_choice(budget.minutes)
    if (known := folder.decided(name)) is None:
        if not parts.trainable.is_retry_safe:
            msg = f"run.budget.minutes cannot be measured with optimizer.kind={parts.settings.optimizer.kind}, which "
            msg += "takes no step on trial: set run.budget.steps or run.budget.tokens"
            raise ConfigurationError(msg)
        show("measuring the time of a step")
        evaluation = parts.settings.evaluation
        times = _measured(parts, rows)
        seconds = started + budget.minutes * _SECONDS_A_MINUTE - time.monotonic()
        steps = times.steps_in(seconds, evaluation_every=evaluation.every, is_evaluated_at_start=evaluation.at_start)
        reason = f"{counted(steps, 'step')} of about {times.step * (1 + _UPDATE_SHARE):.2g} s fit"
        known = folder.decide(name, str(steps), reason)
    budget.decide(int(known))


def _measured(parts: ModelParts, rows: int) -> StepTimes:
    settings, trainable = parts.settings, parts.trainable
    length = settings.data.row_length
    ranks = mesh_of(settings.distributed, parts.process_group.size).data_ranks
    num_parts = math.ceil(settings.optimizer.num_rows / ranks / rows)
    part, measured = full_rows(min(rows, max(1, settings.optimizer.num_rows // ranks)), length), list[float]()
    learn_nothing(trainable, part, times=1)  # builds kernels, allocates memory
    began = time.perf_counter()
    for _ in range(_TRIALS):
        since = time.perf_counter()
        learn_nothing(trainable, part, times=num_parts)
        measured.append(time.perf_counter() - since)
        if parts.process_group.size == 1 and time.perf_counter() - began > _SECONDS_OF_TRIALS:
            break
    held_out = full_rows(settings.evaluation.batch_size, length)
    since = time.perf_counter()
    float(trainable.evaluate(held_out))
    batches = math.ceil(settings.evaluation.max_tokens / held_out.num_tokens / ranks)
    return StepTimes(statistics.median(measured), batches * (time.perf_counter() - since))
