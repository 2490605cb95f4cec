"""Takes one optimizer step in as many micro-batches as memory requires."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsFloat, final

from holdfast.domain.errors import NonFiniteGradients, StepTorn, TrainingError
from holdfast.domain.training.step_outcome import StepOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.domain.data.batch import Batch
    from holdfast.domain.errors import OutOfMemory
    from holdfast.domain.training.parallel_mesh import ParallelMesh
    from holdfast.ports.optimizer import Trainable, Update
    from holdfast.ports.process_group import ProcessGroup


class StepAbandoned(Exception):
    """The step was abandoned before its update, as the run is to stop, and nothing has changed."""


@final
class StepEngine:
    """Takes optimizer steps; ``micro_batch``, the number of rows in one pass of the model, changes no result.

    ``figures`` are further ones of the last step, by the names of their metrics, not yet read from the device.

    All tokens of the batch have the same weight, in any micro-batch and on any rank: losses are summed and weighted by
    one over the number of targets of the whole batch.
    """

    def __init__(self, trainable: Trainable, *, micro_batch: int) -> None:
        self._trainable = trainable
        self.micro_batch = micro_batch
        self.figures: Mapping[str, SupportsFloat] = {}

    def retry_obstacle(self, error: OutOfMemory | StepTorn, *, num_ranks: int) -> str | None:
        """Return why this process cannot repeat a step that ran out of memory, None if it can."""
        if isinstance(error, StepTorn):
            return "parameters and optimizer state are inconsistent"
        if num_ranks > 1:
            return "the other ranks are waiting in the middle of it"
        return None if self._trainable.is_retry_safe else "its gradients cannot be dropped"

    def step(
        self,
        batch: Batch,
        *,
        step: int,
        learning_rate: float,
        num_targets: int,
        num_tokens: int,
        should_stop: Callable[[], bool],
        on_applied: Callable[[float | None, str | None], object],
        may_fail: Callable[[], bool] = lambda: False,
    ) -> StepOutcome:
        """Train on ``batch`` as the step numbered ``step``; return its figures.

        ``num_targets``, the terms of the mean loss, and ``num_tokens`` are sums over all ranks. ``should_stop`` is
        asked between micro-batches, ``may_fail`` after an error: a signal may also end the compilers of a pass.
        ``on_applied`` gets the mean loss, and None or why the update was dropped. Without a target the state stays as
        it is, and the loss is None. Raises ``OutOfMemory``, or ``StepAbandoned`` if asked to, with nothing changed, and
        ``StepTorn`` where memory ran out during the update.
        """
        started = time.perf_counter()
        losses: Sequence[float] = ()
        grad_norm: SupportsFloat = 0.0
        self.figures = {}
        if num_targets == 0:
            on_applied(None, None)
        else:
            with self._trainable.update(step=step, learning_rate=learning_rate) as update:
                losses = self._accumulate(update, batch, 1.0 / num_targets, should_stop, may_fail)
                grad_norm, dropped = self._applied(update, loss := math.fsum(losses) / num_targets)
                on_applied(loss, dropped)
        return StepOutcome(
            losses=losses,
            num_targets=num_targets,
            num_tokens=num_tokens,
            grad_norm=grad_norm,
            learning_rate=learning_rate,
            micro_batch=min(self.micro_batch, batch.num_rows),
            step_seconds=time.perf_counter() - started,
        )

    def _accumulate(
        self,
        update: Update,
        batch: Batch,
        weight: float,
        should_stop: Callable[[], bool],
        may_fail: Callable[[], bool],
    ) -> Sequence[float]:
        """Accumulate the gradient of ``batch``; return the losses of its micro-batches, summed over the ranks."""
        parts = list(batch.split(self.micro_batch))
        losses: list[SupportsFloat] = []
        for part in parts:
            if losses and self._trainable.is_retry_safe and should_stop():
                raise StepAbandoned
            try:
                losses.append(update.accumulate(part, weight=weight, last=part is parts[-1]))
            except Exception as error:
                if isinstance(error, TrainingError) or not (self._trainable.is_retry_safe and may_fail()):
                    raise
                raise StepAbandoned(f"{type(error).__name__}: {error}".partition("\n")[0]) from error
        return [float(loss) for loss in self._trainable.sum_over_ranks(losses)]

    def _applied(self, update: Update, loss: float) -> tuple[SupportsFloat, str | None]:
        """Apply the update; return the gradient's norm, and None or the reason why the update was dropped."""
        self.figures = update.figures()
        if not math.isfinite(loss) and self._trainable.is_retry_safe:
            return math.nan, f"the loss is {loss}"
        try:
            return update.apply(), None
        except NonFiniteGradients as error:
            return math.nan, str(error)


@final
@dataclass(frozen=True, slots=True)
class DataRanks:
    """The groups of ranks of ``mesh`` with the same rows; ``sum`` is collective, as that of ``group``."""

    group: ProcessGroup
    mesh: ParallelMesh

    @property
    def rank(self) -> int:
        """Return the number of this rank's group."""
        return self.mesh.data_rank(self.group.rank)

    @property
    def size(self) -> int:
        """Return the number of groups."""
        return self.mesh.data_ranks

    def sum(self, numbers: Sequence[float]) -> Sequence[float]:
        """Return the sum of each number over the groups; the ranks of a group pass the same numbers.

        If one rank alone passes a positive number, the sum is positive. Raises ``TrainingError`` if a rank is lost.
        """
        return [number / self.mesh.peers for number in self.group.sum(numbers)]
