"""The plan of a run: budget, schedule and grace period."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.domain.fault_tolerance.grace_period import GracePeriod

if TYPE_CHECKING:
    from holdfast.domain.training.budget import Budget
    from holdfast.domain.training.lr_schedule import Schedule


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """The budget, the learning-rate schedule, and the grace period between a signal and the end."""

    budget: Budget
    schedule: Schedule
    grace: GracePeriod = field(default_factory=GracePeriod)
