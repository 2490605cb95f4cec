"""Asks for evaluations at regular steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from holdfast.domain.commands import Evaluate

if TYPE_CHECKING:
    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import DataEnded, RunStarted, StepCompleted
    from holdfast.domain.training.budget import Budget
    from holdfast.domain.training.cadence import Cadence


@final
class EvaluateOnCadence:
    """Asks for an evaluation when one is due, at the end of budget or data, and, if ``at_start``, of the new model."""

    def __init__(self, cadence: Cadence, budget: Budget, inbox: Inbox, *, at_start: bool) -> None:
        self._cadence = cadence
        self._budget = budget
        self._inbox = inbox
        self._at_start = at_start

    def on_start(self, event: RunStarted) -> None:
        """Answer the start of a new run."""
        if self._at_start and event.progress.step == 0:
            self._inbox.post(Evaluate())

    def on_step(self, event: StepCompleted) -> None:
        """Answer a step."""
        if self._cadence.is_due(event.progress.step) or self._budget.is_spent_by(event.progress):
            self._inbox.post(Evaluate())

    def on_data_end(self, _: DataEnded) -> None:
        """Answer the end of finite data."""
        self._inbox.post(Evaluate())
