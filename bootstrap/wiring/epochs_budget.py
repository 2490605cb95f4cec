"""Turns the epochs of a run without another limit into steps, before the first step and after a return."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, final

from holdfast.application.data.cached_batches import CachedBatches
from holdfast.bootstrap.run_folder.decided_steps import name_of_epochs
from holdfast.domain.counting import counted
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.events import RolledBack, RunStarted
from holdfast.domain.training.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.application.data.feed import BatchStream
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.wiring.subscriptions import Subscription
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.budget import Budget
    from holdfast.ports.state_store import StateStore

_SINCE = "since_row"


def decide_epochs(
    budget: Budget,
    stream: BatchStream,
    settings: TrainSettings,
    folder: SharedRunFolder,
    store: StateStore,
    report: Callable[[str], object],
) -> Sequence[Subscription]:
    """Limit ``budget`` to the steps in which ``stream`` deals all its rows, if it has no limit but its epochs.

    The learning rate then falls to its floor at the end of the data. A run that has decided before keeps its steps. If
    its data or the rows of a step have changed, or it continues from before the decision, the rest of the rows after
    the newest checkpoint in ``store`` is counted anew, and ``report`` gets a sentence. Returns the subscriptions that
    do this for another position: that of the checkpoint that is restored, or of a roll-back. All ranks call this.
    Raises ``ConfigurationError`` if the number of rows is not known because the data are streamed, and ``DataError`` if
    there is no row.
    """
    if not budget.is_undecided or budget.minutes is not None or budget.epochs is None:
        folder.drop_decisions(name_of_epochs(""))  # steps that are taken meanwhile may have other rows
        return []
    if not isinstance(stream, CachedBatches):
        reason = folder.decisions.get("data.mode", {}).get("reason")
        why = f" (data.mode=auto streams them, as {reason})" if reason else ""
        msg = (
            f"data.epochs={budget.epochs} alone is no length for streamed data{why}, whose rows are not counted "
            "before: set run.budget.steps, .tokens or .minutes too, or data.mode=cache"
        )
        raise ConfigurationError(msg)
    _, rows = stream.order()
    assert rows is not None  # the stream ends with its epochs
    decision = _EpochsDecision(budget, rows, settings.optimizer.num_rows, folder, report)
    newest = max((each.progress for each in store.list()), key=lambda progress: progress.step, default=Progress())
    decision.begin(newest)
    return [(RunStarted, decision.on_return), (RolledBack, decision.on_return)]


@final
class _EpochsDecision:
    """The last step of a run that reads ``rows`` rows, ``a_step`` in a step, and the row since which it is decided.

    Steps in the same number of rows keep the decision right, and a roll-back that leaves rows out keeps the schedule.
    """

    def __init__(
        self, budget: Budget, rows: int, a_step: int, folder: SharedRunFolder, report: Callable[[str], object]
    ) -> None:
        self._budget = budget
        self._rows = rows
        self._a_step = a_step
        self._folder = folder
        self._report = report
        self._name = name_of_epochs(budget.epochs or 0)
        self._steps = 0
        self._since = 0

    def begin(self, newest: Progress) -> None:
        """Decide for a run whose newest checkpoint is of ``newest``, on the first rank for all."""
        known = self._folder.decision(self._name)
        before = int(known.get("value", 0))
        if known.get("reason") == self._reason:
            self._steps, self._since = before, int(known.get(_SINCE, 0))
        step, samples = map(int, self._folder.gather(f"{newest.step} {newest.cursor.samples}")[0].split())
        self._follow(step, samples, before)

    def on_return(self, event: RunStarted | RolledBack) -> None:
        """Decide anew if the run continues from before the decision; all ranks come to the same steps."""
        progress = event.progress
        if self._follow(progress.step, progress.cursor.samples, self._steps):
            with suppress(StateError):  # the next start would come to the same steps
                self._folder.write()

    @property
    def _reason(self) -> str:
        return f"{counted(self._rows, 'row')} in steps of {self._a_step:,}"

    def _follow(self, step: int, samples: int, before: int) -> bool:
        """Limit the budget for a run at ``step`` and ``samples``; return whether the steps are decided anew."""
        whole = max(1, step + max(0, -(-(self._rows - samples) // self._a_step)))
        stands = self._since <= samples and whole <= self._steps
        if not stands:
            self._steps, self._since = whole, samples
            self._folder.drop_decisions(name_of_epochs(""))
            self._folder.record_decision(self._name, str(whole), self._reason, {_SINCE: str(samples)})
            if before not in (0, whole):
                self._report(f"{self._name} now ends the run at step {whole:,}, not {before:,}: {self._reason}")
            if step and samples > self._rows:
                read = f"the run has read {counted(samples, 'row')}, more than the {self._rows:,} of {self._name}"
                self._report(f"{read}: it ends at step {step:,}, where it is")
        self._budget.steps = self._steps
        return not stands
