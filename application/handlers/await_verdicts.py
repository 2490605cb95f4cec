"""Waits after each evaluation of a trial until its study says whether the trial goes on."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from holdfast.domain.commands import Evaluate, StopRun

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.inbox import Inbox
    from holdfast.domain.events import EvaluationCompleted, RunStarted
    from holdfast.domain.training.budget import Budget
    from holdfast.domain.training.cadence import Cadence
    from holdfast.domain.training.progress import Progress
    from holdfast.domain.tuning.trial import TrialVerdict

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
