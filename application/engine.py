"""One optimizer step in as many micro-batches as memory allows."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, final

from domain.outcome import StepOutcome

if TYPE_CHECKING:
    from domain.batch import Batch
    from ports.optimizer import Trainable


@final
class Engine:
    """Takes optimizer steps; ``micro_batch``, the rows that go through the model at once, changes no result.

    Each token of the batch weighs the same, whatever its micro-batch and rank: losses are summed and weighted by one
    over the number of targets of the whole batch.
    """

    def __init__(self, trainable: Trainable, *, micro_batch: int) -> None:
        self._trainable = trainable
        self.micro_batch = micro_batch

    def step(
        self, batch: Batch, *, step: int, learning_rate: float, totals: tuple[int, int] | None = None
    ) -> StepOutcome:
        """Train on ``batch`` as the step numbered ``step``; raises ``OutOfMemory`` with nothing changed.

        ``totals`` are the targets and tokens of all ranks' batches; None where there is one rank.
        """
        started = time.perf_counter()
        parts = list(batch.split(self.micro_batch))
        num_targets, num_tokens = totals or (batch.num_targets, batch.num_tokens)
        weight = 1.0 / max(1, num_targets)
        with self._trainable.update(step=step, learning_rate=learning_rate) as update:
            losses = [update.accumulate(part, weight=weight, last=part is parts[-1]) for part in parts]
            grad_norm = update.apply()
        return StepOutcome(
            losses=self._trainable.sum_over_ranks(losses),
            num_targets=max(1, num_targets),
            num_tokens=num_tokens,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            micro_batch=min(self.micro_batch, batch.num_rows),
            step_seconds=time.perf_counter() - started,
        )
