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
    """How long to train, with which learning rates, and how long a signal leaves for the last save."""

    budget: Budget
    schedule: Schedule
    grace: GracePeriod = field(default_factory=GracePeriod)
