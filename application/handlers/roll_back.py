"""Rolls a run back after a loss spike or a series of dropped updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from holdfast.domain.checkpoints.retention import RollBackFloor
from holdfast.domain.commands import RollBack

if TYPE_CHECKING:
    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import CheckpointStarted, RunStarted, StepCompleted
    from holdfast.domain.fault_tolerance.health import SpikePolicy
    from holdfast.domain.training.step_outcome import Progress
    from holdfast.ports.state_store import StateStore


@dataclass(frozen=True, slots=True)
class RollBackPlanner:
    """Plans roll-backs: to multiples of ``every`` steps, at most ``max_rollbacks`` times."""

    every: int
    max_rollbacks: int

    def plan(self, progress: Progress, num_bad: int, reason: str, *, optional: bool) -> RollBack:
        """Return the command to undo the last ``num_bad`` steps and the earlier steps that may have caused them."""
        health, first_bad = progress.health, progress.step - num_bad + 1
        step = health.last_good(first_bad, self.every)
        skip = health.batches_to_skip(step, num_bad)
        rather = health.before_good(step, self.every)
        return RollBack(step, f"step {progress.step}: {reason}", skip, self.max_rollbacks, optional, rather)


@final
class RollBackOnDrops:
    """Asks for a roll-back once ``limit`` updates in a row were dropped: the parameters are at fault then."""

    def __init__(self, limit: int, planner: RollBackPlanner, inbox: Inbox) -> None:
        self._limit = limit
        self._planner = planner
        self._inbox = inbox

    def __call__(self, event: RunStarted | StepCompleted) -> None:
        """Answer ``event``; the start of a run counts too, as the last start may have ended before the roll-back."""
        if event.progress.health.dropped_in_row == self._limit:
            reason = f"{self._limit} updates in a row had a loss or a gradient that was not finite"
            self._inbox.post(self._planner.plan(event.progress, self._limit, reason, optional=False))


@final
class RollBackOnSpike:
    """Asks for a roll-back before a spike of the loss that ``policy`` sees; without a checkpoint, training goes on."""

    def __init__(self, policy: SpikePolicy, planner: RollBackPlanner, inbox: Inbox) -> None:
        self._policy = policy
        self._planner = planner
        self._inbox = inbox

    def __call__(self, event: RunStarted | StepCompleted) -> None:
        """Answer ``event``; the start of a run counts too, as the last start may have ended before the roll-back."""
        losses = event.progress.health.losses
        if num_bad := self._policy.begins(losses):
            calm, late = (
                next(loss for loss in reversed(part) if loss is not None) for part in (losses[:-num_bad], losses)
            )
            reason = f"the loss rose from {calm:.3f} to {late:.3f}"
            self._inbox.post(self._planner.plan(event.progress, num_bad, reason, optional=True))


@final
class ProtectRollBackTarget:
    """Has ``store`` protect the checkpoint that a roll-back of the last ``most_bad`` steps would need.

    Otherwise the newest checkpoints may all be of these steps, or of the step at which the run was interrupted. The
    checkpoint that is best by early stopping is protected too.
    """

    def __init__(self, most_bad: int, every: int, store: StateStore) -> None:
        self._most_bad = most_bad
        self._every = every
        self._store = store

    def __call__(self, event: CheckpointStarted) -> None:
        """Answer ``event``: older checkpoints are deleted once the save is durable."""
        patience = event.progress.patience
        best = None if patience is None else patience.best_step
        self._store.spare(RollBackFloor(event.progress.step - self._most_bad, self._every, best))
