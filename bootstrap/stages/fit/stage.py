"""Fits a run to its machine and its data: the micro-batch, and the length with its learning rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from holdfast.bootstrap.stages.build.compilation import compile_ahead
from holdfast.bootstrap.stages.build.model import schedule
from holdfast.bootstrap.stages.fit.loss_probe import probe_loss
from holdfast.bootstrap.stages.fit.micro_batch import begin_micro_batch
from holdfast.bootstrap.stages.fit.run_length import MinutesBudget
from holdfast.bootstrap.stages.prepare.data_streams import trained_stream
from holdfast.domain.fault_tolerance.restart_policy import GracePeriod
from holdfast.domain.training.train_plan import TrainPlan

if TYPE_CHECKING:
    from holdfast.application.data.feed import BatchStream
    from holdfast.application.handlers.adapt_micro_batch import AdaptMicroBatch
    from holdfast.application.preparation import Preparation
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.stages.build.built import Built
    from holdfast.bootstrap.stages.open_run.stage import Opened
    from holdfast.bootstrap.stages.prepare.stage import PreparedRows
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.budget import Budget


@final
@dataclass(frozen=True, slots=True)
class Fitted:
    """The ``plan`` of a run, its ``stream`` of batches, and the rows of a ``micro_batch``, which ``adapt`` changes."""

    plan: TrainPlan
    stream: BatchStream
    micro_batch: int
    adapt: AdaptMicroBatch


def fit(
    opened: Opened,
    rows: PreparedRows,
    built: Built,
    budget: Budget,
    folder: SharedRunFolder,
    preparation: Preparation,
    started: float,
) -> Fitted:
    """Choose the micro-batch and, from minutes, the length of the run; compile a model for that micro-batch.

    ``budget`` has the steps of epochs. ``started`` is as in ``MinutesBudget``. Raises the errors of its ``decided``,
    and of ``probe_loss``.
    """
    found, settings, inbox = rows.data.found, built.settings, opened.inbox
    report, show = found.report, found.show
    stream = found.request.ports.part("trained_stream", lambda: trained_stream(rows.stream, built.column))
    is_compiled = built.compilations is not None
    num_rows, adapt = begin_micro_batch(built, folder, inbox, is_compiled=is_compiled, report=report, show=show)
    if is_compiled:
        compile_ahead(built, stream, num_rows, preparation, show)
    minutes = MinutesBudget(built, folder, adapt, started, report, show)
    budget, num_rows = minutes.decided(budget, num_rows, opened.state_store)
    probe_loss(built, report=report)
    return Fitted(plan_of(settings, budget), stream, num_rows, adapt)


def plan_of(settings: TrainSettings, budget: Budget) -> TrainPlan:
    """Return the plan of a run of ``budget``; raises ``ConfigurationError`` for a schedule that does not fit it."""
    rates = schedule(settings.optimizer.learning_rate, settings.optimizer.schedule, budget)
    grace = GracePeriod(settings.recovery.grace_seconds)
    return TrainPlan(budget, rates, grace, settings.recovery.early_stopping.rule)
