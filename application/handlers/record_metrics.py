"""The figures of a run, for its monitors."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from domain.events import EvaluationCompleted, RunStarted, StepCompleted
    from ports.monitor import Monitor
    from ports.optimizer import Trainable


@final
class RecordMetrics:
    """Passes each step's and each evaluation's figures to the monitors; one that fails does not deprive the next."""

    def __init__(self, monitors: Sequence[Monitor], trainable: Trainable) -> None:
        self._monitors = monitors
        self._trainable = trainable
        self._memory_bytes = 0
        self._asked = -math.inf

    def on_start(self, event: RunStarted) -> None:
        """Make the monitors forget steps that are about to be taken again."""
        step = event.progress.step
        self._each(lambda monitor: monitor.rewind(step))

    def on_step(self, event: StepCompleted) -> None:
        """Record a step; reading the loss here is what waits for the device."""
        outcome, hardware = event.outcome, self._trainable.hardware
        tokens_per_second = outcome.num_tokens / (outcome.step_seconds + outcome.data_wait_seconds)
        metrics = {
            "tokens": event.progress.tokens,
            "loss": outcome.loss,
            "lr": outcome.learning_rate,
            "grad_norm": float(outcome.grad_norm),
            "tokens_per_second": tokens_per_second,
            "data_wait_seconds": outcome.data_wait_seconds,
            "memory_bytes": self._sampled_memory(),
            "micro_batch": outcome.micro_batch,
        }
        if hardware.peak_flops is not None:
            metrics["mfu"] = tokens_per_second * hardware.flops_per_token / hardware.peak_flops
        self._record(event.progress.step, metrics)

    def on_evaluation(self, event: EvaluationCompleted) -> None:
        """Record an evaluation."""
        evaluation = event.evaluation
        metrics = {
            "tokens": event.progress.tokens,
            "eval_loss": evaluation.loss,
            "eval_bits_per_byte": evaluation.bits_per_byte,
        }
        self._record(event.progress.step, metrics)

    def _sampled_memory(self) -> int:
        """Ask at most once a second: the operating system takes longer to tell than all else here takes."""
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
            except Exception as error:  # noqa: BLE001  raised below, once all have been told
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            msg = "several monitors failed"
            raise ExceptionGroup(msg, errors)
