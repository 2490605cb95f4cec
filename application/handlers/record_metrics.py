"""Records the metrics of a run with its monitors."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, final

from holdfast.application.concurrency.background import BackgroundWorker
from holdfast.domain.errors import TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from holdfast.application.handlers.watch_compilation import Compilations
    from holdfast.domain.events import EvaluationCompleted, Event, RolledBack, RunStarted, StepCompleted, StopRequested
    from holdfast.ports.monitor import Monitor
    from holdfast.ports.optimizer import Trainable

_PATIENCE_SECONDS = 30.0
_SHARE_OF_GRACE = 0.1
_MOST_WAITING = 10_000


@final
class RecordMetrics:
    """Passes the figures of each step and each evaluation to every monitor, even if another monitor fails.

    A thread reads the loss, which waits for the device, and calls the monitors, while training continues. An error is
    raised at a later event, where the bus turns it into ``HandlerFailed``. The run waits for the thread at its start,
    before each checkpoint and at its end, so that no figure of a saved step is lost. If the monitors hang, ``settle``
    raises ``TrainingError`` after 30 seconds (after a signal a tenth of ``grace_seconds`` at most), and the checkpoint
    is made without their figures. Once 10,000 steps are waiting, figures are dropped, which raises as well.
    ``extra_metrics`` are called in the thread for further figures of each step.
    """

    def __init__(
        self,
        monitors: Sequence[Monitor],
        trainable: Trainable,
        compilations: Compilations | None = None,
        *,
        extra_metrics: Sequence[Callable[[], Mapping[str, float]]] = (),
        grace_seconds: float = math.inf,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._monitors = monitors
        self._trainable = trainable
        self._compilations = compilations
        self._extra_metrics = extra_metrics
        self._compile_seconds = 0.0
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._patience = _PATIENCE_SECONDS
        self._thread = BackgroundWorker("monitors")
        self._ready = -math.inf
        self._memory_bytes = 0
        self._asked = -math.inf
        self._dropped = 0

    def on_start(self, event: RunStarted | RolledBack) -> None:
        """Make the monitors forget steps that are about to be taken again."""
        step = event.progress.step
        self._thread.submit(lambda: self._each(lambda monitor: monitor.rewind(step)))
        self.settle(event)

    def on_step(self, event: StepCompleted) -> None:
        """Have a step recorded."""
        completed = self._clock()
        if self._thread.waiting < _MOST_WAITING:
            compiling = self._compiling()
            self._thread.submit(lambda: self._record_step(event, completed, compiling))
        else:
            self._drop()
        self._thread.raise_errors()

    def on_evaluation(self, event: EvaluationCompleted) -> None:
        """Have an evaluation recorded."""
        self._thread.submit(lambda: self._record_evaluation(event))
        self._thread.raise_errors()

    def on_stop(self, event: StopRequested) -> None:
        """Wait less from here on if a signal has left little time."""
        if event.signal is not None:
            self._patience = min(_PATIENCE_SECONDS, self._grace_seconds * _SHARE_OF_GRACE)

    def settle(self, event: Event) -> None:
        """Wait until all figures have reached the monitors; raises ``TrainingError`` if they take 30 seconds."""
        if not self._thread.settle(self._patience):
            msg = f"the monitors have not answered for {self._patience:.0f} s at {type(event).__name__}"
            raise TrainingError(msg)
        self._thread.raise_errors()

    def close(self) -> None:
        """End the thread once the monitors have everything."""
        self._thread.close(self._patience)

    def _record_step(self, event: StepCompleted, completed: float, compiling: Mapping[str, float]) -> None:
        outcome, hardware = event.outcome, self._trainable.hardware
        supply = outcome.supply
        loss, grad_norm = outcome.loss, float(outcome.grad_norm)
        # the loop runs ahead of a GPU: a step took from its start, or the end of the one before, to its loss's arrival
        began = max(self._ready, completed - outcome.step_seconds - supply.wait_seconds)
        self._ready = self._clock()
        tokens_per_second = outcome.num_tokens / max(self._ready - began, 1e-9)
        metrics = {
            "tokens": event.progress.tokens,
            "loss": loss,
            "lr": outcome.learning_rate,
            "grad_norm": grad_norm,
            "tokens_per_second": tokens_per_second,
            "data_wait_seconds": supply.wait_seconds,
            "batches_ready": supply.batches_ready,
            "bytes_read": supply.bytes_read,
            "read_retries": supply.read_retries,
            "rejected": supply.rejected,
            "memory_bytes": self._sampled_memory(),
            "micro_batch": outcome.micro_batch,
            "dropped_updates": event.progress.health.dropped,
            "rollbacks": len(event.progress.health.returns),
            "memory_retries": self._trainable.memory_retries,
            **compiling,
        }
        for figures in self._extra_metrics:
            metrics |= figures()
        if hardware.peak_flops is not None:
            metrics["mfu"] = tokens_per_second * hardware.flops_per_token / hardware.peak_flops
        self._record(event.progress.step, metrics)

    def _compiling(self) -> Mapping[str, float]:
        """Return the compilations of the step; called in the loop, as the next step may compile again."""
        if (found := self._compilations) is None:
            return {}
        before, self._compile_seconds = self._compile_seconds, found.seconds
        return {"compile_seconds": found.seconds - before, "recompiles": found.recompiles}

    def _record_evaluation(self, event: EvaluationCompleted) -> None:
        evaluation = event.evaluation
        metrics = {
            "tokens": event.progress.tokens,
            "eval_loss": evaluation.loss,
            "eval_bits_per_byte": evaluation.bits_per_byte,
        }
        self._record(event.progress.step, metrics)

    def _sampled_memory(self) -> int:
        """Ask at most once a second, as the query of the operating system takes longer than all the rest here."""
        now = time.monotonic()
        if now - self._asked >= 1.0:
            self._asked, self._memory_bytes = now, self._trainable.memory_bytes()
        return self._memory_bytes

    def _record(self, step: int, metrics: Mapping[str, float]) -> None:
        self._each(lambda monitor: monitor.record(step, metrics))

    def _each(self, tell: Callable[[Monitor], None]) -> None:
        errors = []
        for monitor in self._monitors:
            try:
                tell(monitor)
            except Exception as error:  # noqa: BLE001  raised below, after all monitors were called
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            msg = "several monitors failed"
            raise ExceptionGroup(msg, errors)

    def _drop(self) -> None:
        self._dropped += 1
        if self._dropped % _MOST_WAITING == 1:
            msg = f"the monitors are {_MOST_WAITING:,} steps behind: figures are dropped until they catch up"
            raise TrainingError(msg)
