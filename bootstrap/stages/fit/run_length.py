"""Turns the minutes or the epochs of a run into steps, once, before its first step."""

from __future__ import annotations

import math
import statistics
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from holdfast.application.data.cached_batches import CachedBatches
from holdfast.application.training.evaluator import PieceLosses
from holdfast.application.training.loop import does_not_fit
from holdfast.application.training.micro_batch_search import full_rows, learn_nothing
from holdfast.bootstrap.adapter_choice.process_group import mesh_of
from holdfast.bootstrap.run_folder.record_file import name_of_epochs, name_of_minutes
from holdfast.domain.errors import ConfigurationError, OutOfMemory, RestartNeeded, StateError
from holdfast.domain.events import RolledBack, RunStarted
from holdfast.domain.sizes import counted
from holdfast.domain.training.run_forecast import TrialTimes, steps_within
from holdfast.domain.training.step_outcome import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.application.data.feed import BatchStream
    from holdfast.application.handlers.adapt_micro_batch import AdaptMicroBatch
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.bootstrap.stages.build.built import Built
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.phase import ShowPhase
    from holdfast.domain.training.budget import Budget
    from holdfast.ports.event_bus import Subscription
    from holdfast.ports.state_store import StateStore

_MEASURING = "measuring the time of a step"
_TRIALS, _SECONDS_OF_TRIALS = 4, 8.0
_UPDATE_SHARE = 0.15  # of a step, for the update itself, data, metrics, checkpoints and a machine that slows down
_SECONDS_AT_END = 5.0  # the last checkpoint, the sample and the report
_SECONDS_A_MINUTE = 60.0


@final
@dataclass(frozen=True, slots=True)
class MinutesBudget:
    """Measures a step and an evaluation of a run, and decides how many steps fit into its minutes.

    Nothing is learned, so the result is that of a run with as many steps. ``adapt`` remembers the micro-batches that do
    not fit into memory, and ``started`` is the start of the process on the clock ``time.monotonic``. All ranks call
    ``decided``.
    """

    parts: Built
    folder: SharedRunFolder
    adapt: AdaptMicroBatch
    started: float
    report: Callable[[str], object]
    show: ShowPhase

    def decided(self, budget: Budget, rows: int, store: StateStore) -> tuple[Budget, int]:
        """Return ``budget`` with the steps that fit into its minutes; a run that has decided before keeps its steps.

        The minutes begin with the process, after the steps of the newest checkpoint in ``store``. ``rows`` are those of
        a micro-batch; the rows to begin with are returned too, fewer than these if they did not fit. Raises
        ``ConfigurationError`` if a pass over a batch cannot be tried without a trace, ``OutOfMemory`` if one row does
        not fit, and ``RestartNeeded`` if only new processes can try fewer rows.
        """
        if budget.minutes is None:
            return budget, rows
        name = name_of_minutes(budget.minutes)
        if (known := self.folder.decided(name)) is None:
            self._refuse_traces()
            self.show(_MEASURING)
            rows, step = self._fitting(rows)
            times = self._times(step)
            seconds = self.started + budget.minutes * _SECONDS_A_MINUTE - time.monotonic()
            every = self.parts.settings.evaluation.every
            steps = steps_within(seconds, times, evaluation_every=every, save_every=0)
            taken = 0 if self.parts.process_group.rank else _newest_step(store)
            after = f" after step {taken:,}" if taken else ""
            reason = f"{counted(steps, 'step')} of about {times.step:.2g} s fit{after}"
            known = self.folder.decide(name, str(taken + steps), reason)
        return budget.decided(int(known)), rows

    def _refuse_traces(self) -> None:
        if not self.parts.trainable.is_retry_safe:
            msg = f"run.budget.minutes cannot be measured with optimizer.kind={self.parts.settings.optimizer.kind}, "
            msg += "which takes no step on trial: set run.budget.steps or run.budget.tokens"
            raise ConfigurationError(msg)

    def _fitting(self, rows: int) -> tuple[int, float]:
        """Return the rows of a micro-batch that fit into memory, at most ``rows``, and the seconds of a step."""
        while True:
            try:
                return rows, self._seconds_of_step(rows)
            except OutOfMemory as error:
                shortage = error.with_traceback(None)  # its frames would hold the tensors of the trial
            fewer, group = self.adapt.reduce(rows), self.parts.process_group
            if fewer >= rows:
                raise does_not_fit(shortage, rows)
            if group.size > 1:
                msg = f"a step does not fit into the memory of rank {group.rank} in micro-batches of {rows} rows "
                msg += f"({shortage}), and the other ranks are waiting in the middle of it: run the same command "
                msg += "again; it will use smaller micro-batches"
                raise RestartNeeded(msg)
            self.report(f"micro-batches of {fewer}, not {rows}: more did not fit into memory when a step was tried")
            rows = fewer

    def _seconds_of_step(self, rows: int) -> float:
        """Return the median seconds in which all micro-batches of a step pass forward and backward."""
        settings, trainable, group = self.parts.settings, self.parts.trainable, self.parts.process_group
        ranks = mesh_of(settings.distributed, group.size).data_ranks
        num_parts = math.ceil(settings.optimizer.num_rows / ranks / rows)
        part = full_rows(min(rows, max(1, settings.optimizer.num_rows // ranks)), settings.data.row_length)
        learn_nothing(trainable, part, times=1)  # builds kernels, allocates memory
        measured, began = list[float](), time.perf_counter()
        for _ in range(_TRIALS):
            self.show(_MEASURING)
            since = time.perf_counter()
            learn_nothing(trainable, part, times=num_parts)
            measured.append(time.perf_counter() - since)
            if group.size == 1 and time.perf_counter() - began > _SECONDS_OF_TRIALS:
                break
        return statistics.median(measured)

    def _times(self, step: float) -> TrialTimes:
        """Return the times of the parts of the run that are still to come, with saves as a share of the steps."""
        evaluation = self._seconds_of_evaluation()
        return TrialTimes(
            start=0.0,
            first_evaluation=evaluation if self.parts.settings.evaluation.at_start else 0.0,
            step=step * (1 + _UPDATE_SHARE),
            evaluation=evaluation,
            save=0.0,
            end=_SECONDS_AT_END,
        )

    def _seconds_of_evaluation(self) -> float:
        settings, group = self.parts.settings, self.parts.process_group
        if not (settings.data.holdout or settings.data.folds or settings.evaluation.sets):
            return 0.0
        ranks = mesh_of(settings.distributed, group.size).data_ranks
        losses = PieceLosses(self.parts.trainable, num_ranks=group.size)
        held_out = full_rows(settings.evaluation.batch_size, settings.data.row_length)
        losses.total(held_out)  # finds the rows that fit
        since = time.perf_counter()
        losses.total(held_out)
        batches = math.ceil(settings.evaluation.max_tokens / held_out.num_tokens / ranks)
        return batches * (time.perf_counter() - since)


def _newest_step(store: StateStore) -> int:
    return max((each.progress.step for each in store.list()), default=0)


_SINCE = "since_row"


def decide_epochs(
    budget: Budget,
    stream: BatchStream,
    settings: TrainSettings,
    folder: SharedRunFolder,
    store: StateStore,
    report: Callable[[str], object],
) -> tuple[Budget, Sequence[Subscription]]:
    """Return ``budget`` with the steps in which ``stream`` deals all its rows, if it has no limit but its epochs.

    The learning rate then falls to its floor at the end of the data. A run that has decided before keeps its steps. If
    its data or the rows of a step have changed, or it continues from before the decision, the rest of the rows after
    the newest checkpoint in ``store`` is counted anew, and ``report`` gets a sentence. The subscriptions do this for
    another position: that of the checkpoint that is restored, or of a roll-back. They change the budget that is
    returned, which all that the run is made of has. All ranks call this. Raises ``ConfigurationError`` if the number of
    rows is not known because the data are streamed, and ``DataError`` if there is no row.
    """
    if not budget.is_undecided or budget.minutes is not None or budget.epochs is None:
        folder.drop_decisions(name_of_epochs(""))  # steps that are taken meanwhile may have other rows
        return budget, []
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
    decision = _EpochsDecision(replace(budget), rows, settings.optimizer.num_rows, folder, report)
    newest = max((each.progress for each in store.list()), key=lambda progress: progress.step, default=Progress())
    decision.begin(newest)
    return decision.budget, [(RunStarted, decision.on_return), (RolledBack, decision.on_return)]


@final
class _EpochsDecision:
    """The last step of a run that reads ``rows`` rows, ``a_step`` in a step, and the row since which it is decided.

    Steps in the same number of rows keep the decision right, and a roll-back that leaves rows out keeps the schedule.
    ``budget`` has the steps.
    """

    def __init__(
        self, budget: Budget, rows: int, a_step: int, folder: SharedRunFolder, report: Callable[[str], object]
    ) -> None:
        self.budget = budget
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
        self.budget.steps = self._steps
        return not stands
