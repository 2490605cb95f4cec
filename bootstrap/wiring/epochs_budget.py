"""Turns the epochs of a run without another limit into steps, once, before the first step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.application.data.cached_batches import CachedBatches
from holdfast.bootstrap.run_folder.decided_steps import name_of_epochs
from holdfast.domain.counting import counted
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.application.data.feed import BatchStream
    from holdfast.bootstrap.run_folder.shared import SharedRunFolder
    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.budget import Budget


def decide_epochs(budget: Budget, stream: BatchStream, settings: TrainSettings, folder: SharedRunFolder) -> None:
    """Limit ``budget`` to the steps in which ``stream`` deals all its rows, if it has no limit but its epochs.

    The learning rate then falls to its floor at the end of the data. A run that has decided before keeps its steps.
    All ranks call this. Raises ``ConfigurationError`` if the number of rows is not known because the data are
    streamed, and ``DataError`` if there is no row.
    """
    if budget.has_limit or budget.epochs is None:
        return
    if not isinstance(stream, CachedBatches):
        msg = f"data.epochs={budget.epochs} alone is no length for streamed data, whose number of tokens is not known: "
        msg += "set run.budget.steps, .tokens or .minutes too, or data.mode=cache"
        raise ConfigurationError(msg)
    name = name_of_epochs(budget.epochs)
    if (known := folder.decided(name)) is None:
        _, rows = stream.order()
        assert rows is not None  # the stream ends with its epochs
        a_step = settings.optimizer.num_rows
        reason = f"{counted(rows, 'row')} in steps of {a_step:,}"
        known = folder.decide(name, str(-(-rows // a_step)), reason)
    budget.decide(int(known))
