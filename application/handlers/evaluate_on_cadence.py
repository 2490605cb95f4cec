"""Asks for evaluations at regular steps."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from holdfast.domain.commands import Evaluate, SaveCheckpoint, StopEarly, StopRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import DataEnded, EvaluationCompleted, RunStarted, StepCompleted
    from holdfast.domain.training.budget import Budget
    from holdfast.domain.training.cadence import Cadence
    from holdfast.domain.training.early_stopping import EarlyStopping, Patience
    from holdfast.domain.training.step_outcome import Progress
    from holdfast.domain.tuning.trial import TrialVerdict


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


_SHORTEST_SECONDS, _LONGEST_SECONDS = 0.01, 0.2


@final
class AwaitVerdicts:
    """Stops the run at the very evaluation after which its study ends it, however busy the study is.

    ``verdict_at`` returns the verdict on the evaluation at a step, None while there is none. The evaluation before the
    first step gets no verdict. A start makes up for a due evaluation that has no verdict: an earlier start may have
    been killed before it. At the end of the budget there is nothing left to stop.
    """

    def __init__(
        self,
        verdict_at: Callable[[int], TrialVerdict | None],
        cadence: Cadence,
        budget: Budget,
        inbox: Inbox,
        *,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._verdict_at = verdict_at
        self._cadence = cadence
        self._budget = budget
        self._inbox = inbox
        self._sleep = sleep

    def on_start(self, event: RunStarted) -> None:
        """Obey the verdict on the step at which the run starts, or ask for the evaluation that it lacks."""
        step = event.progress.step
        if step == 0:
            return
        if (verdict := self._verdict_at(step)) is not None:
            self._obey(verdict, event.progress)
        elif self._cadence.is_due(step) or self._budget.is_spent_by(event.progress):
            self._inbox.post(Evaluate())

    def on_evaluation(self, event: EvaluationCompleted) -> None:
        """Wait for the verdict, unless the run is asked to stop."""
        step, seconds = event.progress.step, _SHORTEST_SECONDS
        while step > 0 and not self._inbox.stop_requested:
            if (verdict := self._verdict_at(step)) is not None:
                self._obey(verdict, event.progress)
                return
            self._sleep(seconds)
            seconds = min(2 * seconds, _LONGEST_SECONDS)

    def _obey(self, verdict: TrialVerdict, progress: Progress) -> None:
        if verdict.reason is not None and not self._budget.is_spent_by(progress):
            self._inbox.post(StopRun(verdict.reason))
