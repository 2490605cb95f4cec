"""Stops a run whose evaluations no longer improve."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from holdfast.domain.commands import SaveCheckpoint, StopEarly

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import EvaluationCompleted, RunStarted
    from holdfast.domain.training.budget import Budget
    from holdfast.domain.training.early_stopping import EarlyStopping, Patience
    from holdfast.domain.training.progress import Progress


@final
class StopWithoutImprovement:
    """Asks for a stop once ``rule`` says so, and for a checkpoint after each evaluation that is the best so far.

    Its state is that of the progress, so that a new process decides as the earlier one would have. A run that was
    stopped early is stopped again at its next start, unless the rule has changed; ``report`` gets a sentence then.
    Without a ``rule``, early stopping is switched off.
    """

    def __init__(
        self, rule: EarlyStopping | None, budget: Budget, inbox: Inbox, report: Callable[[str], object]
    ) -> None:
        self._rule = rule
        self._budget = budget
        self._inbox = inbox
        self._report = report

    def on_start(self, event: RunStarted) -> None:
        """Answer the start of a run."""
        progress = event.progress
        if progress.patience is None:
            return
        self._stop_if_due(progress)
        is_over = self._budget.is_spent_by(progress) or (self._rule is not None and self._rule.stops(progress.patience))
        if progress.patience.is_exhausted and not is_over:
            text = f"the run was stopped early at step {progress.patience.step} ({progress.patience})"
            self._report(f"{text}; it goes on, as {_reason(self._rule, progress.patience)}")

    def on_evaluation(self, event: EvaluationCompleted) -> None:
        """Answer an evaluation; the model before the first step is never saved."""
        progress = event.progress
        if progress.patience is not None and progress.patience.best_step == progress.step > 0:
            self._inbox.post(SaveCheckpoint())
        self._stop_if_due(progress)

    def _stop_if_due(self, progress: Progress) -> None:
        if self._rule is not None and self._rule.stops(progress.patience):
            self._inbox.post(StopEarly(progress.step, f"early stopping: {progress.patience}"))


def _reason(rule: EarlyStopping | None, patience: Patience) -> str:
    if rule is None:
        return "early stopping is switched off"
    if rule.metric != patience.metric:
        return f"recovery.early_stopping.metric is now {rule.metric}"
    return f"recovery.early_stopping.patience is now {rule.patience}"
