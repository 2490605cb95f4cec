"""One optimizer step in as many micro-batches as memory allows."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, SupportsFloat, final

from holdfast.domain.errors import NonFiniteGradients
from holdfast.domain.training.step_outcome import StepOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.domain.data.batch import Batch
    from holdfast.ports.optimizer import Trainable, Update


class StepGivenUp(Exception):
    """The step was left between two micro-batches, and nothing has changed."""


@final
class Engine:
    """Takes optimizer steps; ``micro_batch``, the rows that go through the model at once, changes no result.

    Each token of the batch weighs the same, whatever its micro-batch and rank: losses are summed and weighted by one
    over the number of targets of the whole batch.
    """

    def __init__(self, trainable: Trainable, *, micro_batch: int) -> None:
        self._trainable = trainable
        self.micro_batch = micro_batch

    @property
    def is_retry_safe(self) -> bool:
        """Return whether a step that fell short of memory can be tried again in this process."""
        return self._trainable.is_retry_safe

    def step(
        self,
        batch: Batch,
        *,
        step: int,
        learning_rate: float,
        totals: tuple[int, int] | None = None,
        is_given_up: Callable[[], bool] = lambda: False,
        on_applied: Callable[[float, str | None], object] = lambda *_: None,
    ) -> StepOutcome:
        """Train on ``batch`` as the step numbered ``step``; raises ``OutOfMemory`` with nothing changed.

        ``totals`` are the targets and tokens of all ranks' batches; None where there is one rank. ``is_given_up`` is
        asked before each micro-batch but the first; then ``StepGivenUp`` is raised, where a step can be left.
        ``on_applied`` is called once parameters are those behind the step, whatever fails after that, with the mean
        loss and, if that or a gradient is no number, why they were left as they were.
        """
        started = time.perf_counter()
        parts = list(batch.split(self.micro_batch))
        num_targets, num_tokens = totals or (batch.num_targets, batch.num_tokens)
        weight = 1.0 / max(1, num_targets)
        with self._trainable.update(step=step, learning_rate=learning_rate) as update:
            losses: list[SupportsFloat] = []
            for part in parts:
                if losses and self._trainable.is_retry_safe and is_given_up():
                    raise StepGivenUp
                losses.append(update.accumulate(part, weight=weight, last=part is parts[-1]))
            summed = [float(loss) for loss in self._trainable.sum_over_ranks(losses)]
            loss = math.fsum(summed) / max(1, num_targets)
            grad_norm, dropped = self._applied(update, loss)
            on_applied(loss, dropped)
        return StepOutcome(
            losses=summed,
            num_targets=max(1, num_targets),
            num_tokens=num_tokens,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            micro_batch=min(self.micro_batch, batch.num_rows),
            step_seconds=time.perf_counter() - started,
        )

    def _applied(self, update: Update, loss: float) -> tuple[SupportsFloat, str | None]:
        """Take the step; return the gradient's norm, or why there is none and nothing has changed."""
        if not math.isfinite(loss) and self._trainable.is_retry_safe:
            return math.nan, f"the loss is {loss}"
        try:
            return update.apply(), None
        except NonFiniteGradients as error:
            return math.nan, str(error)
