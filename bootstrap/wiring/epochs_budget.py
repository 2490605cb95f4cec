"""Turns the epochs of a run without another limit into steps, once, before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.application.data.cached_batches import CachedBatches
from holdfast.bootstrap.run_folder.decided_steps import name_of_epochs
from holdfast.domain.counting import counted
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.application.data.feed import BatchStream
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.budget import Budget
    from holdfast.ports.state_store import StateStore


def decide_epochs(
    budget: Budget,
    stream: BatchStream,
    settings: TrainSettings,
    folder: SharedRunFolder,
    store: StateStore,
    report: Callable[[str], object],
) -> None:
    """Limit ``budget`` to the steps in which ``stream`` deals all its rows, if it has no limit but its epochs.

    The learning rate then falls to its floor at the end of the data. A run that has decided before keeps its steps. If
    its data or the rows of a step have changed, the rest of the rows after the newest checkpoint in ``store`` is
    counted anew, and ``report`` gets a sentence. All ranks call this. Raises ``ConfigurationError`` if the number of
    rows is not known because the data are streamed, and ``DataError`` if there is no row.
    """
    if not budget.is_undecided or budget.minutes is not None or budget.epochs is None:
        return
    if not isinstance(stream, CachedBatches):
        msg = f"data.epochs={budget.epochs} alone is no length for streamed data, whose rows are not counted before: "
        raise ConfigurationError(msg + "set run.budget.steps, .tokens or .minutes too, or data.mode=cache")
    _, rows = stream.order()
    assert rows is not None  # the stream ends with its epochs
    a_step, name = settings.optimizer.num_rows, name_of_epochs(budget.epochs)
    before = folder.decided(name)
    reason = f"{counted(rows, 'row')} in steps of {a_step:,}"
    steps = folder.decide_for(name, str(_steps(rows, a_step, store)), reason)
    if before is not None and steps != before:
        report(f"{name} now ends the run at step {int(steps):,}, not {int(before):,}: {reason}")
    budget.decide(int(steps))


def _steps(rows: int, a_step: int, store: StateStore) -> int:
    """Return the step after which all ``rows`` are read, ``a_step`` in a step from the newest checkpoint on."""
    newest = max((each.progress for each in store.list()), key=lambda progress: progress.step, default=Progress())
    return max(1, newest.step + max(0, -(-(rows - newest.cursor.samples) // a_step)))
