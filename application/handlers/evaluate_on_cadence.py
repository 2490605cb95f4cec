"""Asks for evaluations at regular steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from holdfast.domain.commands import Evaluate

if TYPE_CHECKING:
    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import DataEnded, RunStarted, StepCompleted
    from holdfast.domain.training.budget import Budget
    from holdfast.domain.training.cadence import Cadence
    from holdfast.domain.training.early_stopping import EarlyStopping
    from holdfast.domain.training.progress import Progress


@final
class EvaluateOnCadence:
    """Asks for an evaluation when one is due, at the end of budget or data, and, if ``at_start``, of the new model.

    With ``early_stopping`` a start also makes up for a due evaluation that the previous start did not complete.
    """

    def __init__(
        self,
        cadence: Cadence,
        budget: Budget,
        inbox: Inbox,
        *,
        at_start: bool,
        early_stopping: EarlyStopping | None = None,
    ) -> None:
        self._cadence = cadence
        self._budget = budget
        self._inbox = inbox
        self._at_start = at_start
        self._early_stopping = early_stopping

    def on_start(self, event: RunStarted) -> None:
        """Answer the start of a run."""
        progress, rule = event.progress, self._early_stopping
        is_missing = rule is not None and not rule.has_measured(progress.patience, progress.step)
        if self._at_start if progress.step == 0 else is_missing and self._is_due(progress):
            self._inbox.post(Evaluate())

    def on_step(self, event: StepCompleted) -> None:
        """Answer a step."""
        if self._is_due(event.progress):
            self._inbox.post(Evaluate())

    def on_data_end(self, _: DataEnded) -> None:
        """Answer the end of finite data."""
        self._inbox.post(Evaluate())

    def _is_due(self, progress: Progress) -> bool:
        return self._cadence.is_due(progress.step) or self._budget.is_spent_by(progress)
