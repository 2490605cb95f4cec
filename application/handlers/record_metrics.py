"""The figures of a run, for a monitor."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from domain.events import EvaluationCompleted, RunStarted, StepCompleted
    from ports.monitor import Monitor
    from ports.optimizer import Trainable


@final
class RecordMetrics:
    """Passes each step's and each evaluation's figures to one monitor."""

    def __init__(self, monitor: Monitor, trainable: Trainable) -> None:
        self._monitor = monitor
        self._trainable = trainable

    def on_start(self, event: RunStarted) -> None:
        """Make the monitor forget steps that are about to be taken again."""
        self._monitor.rewind(event.progress.step)

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
            "memory_bytes": self._trainable.memory_bytes(),
            "micro_batch": outcome.micro_batch,
        }
        if hardware.peak_flops is not None:
            metrics["mfu"] = tokens_per_second * hardware.flops_per_token / hardware.peak_flops
        self._monitor.record(event.progress.step, metrics)

    def on_evaluation(self, event: EvaluationCompleted) -> None:
        """Record an evaluation."""
        evaluation = event.evaluation
        self._monitor.record(
            event.progress.step,
            {
                "tokens": event.progress.tokens,
                "eval_loss": evaluation.loss,
                "eval_bits_per_byte": evaluation.bits_per_byte,
            },
        )
