"""The plan of a run: budget, schedule, grace period and early stopping."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.domain.fault_tolerance.restart_policy import GracePeriod

if TYPE_CHECKING:
    from holdfast.domain.training.budget import Budget
    from holdfast.domain.training.early_stopping import EarlyStopping
    from holdfast.domain.training.lr_schedule import Schedule


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """The budget, the learning-rate schedule, the grace period between a signal and the end, and early stopping."""

    budget: Budget
    schedule: Schedule
    grace: GracePeriod = field(default_factory=GracePeriod)
    early_stopping: EarlyStopping | None = None
