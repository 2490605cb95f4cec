"""Reaction of a run to signals and failures."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from holdfast.configs.sections.base import EvaluationMetric, Flag, Natural, Number, Positive, Section, Text
from holdfast.domain.training.early_stopping import EarlyStopping


class SupervisorSettings(Section):
    """Restarts by `train --supervise`."""

    max_restarts: Natural = Field(default=100, description="Maximum number of restarts after crashes.")
    crash_loop: Positive = Field(
        default=5, description="Consecutive crashes without a new checkpoint after which the supervisor gives up."
    )
    first_pause_seconds: Number = Field(
        default=1.0, ge=0, description="Seconds before a restart; doubles with each crash without a new checkpoint."
    )
    longest_pause_seconds: Number = Field(default=60.0, ge=0, description="Maximum seconds before a restart.")


class WatchdogSettings(Section):
    """Detection of a run that hangs."""

    enabled: Flag = Field(default=True, description="Whether a thread in each process detects that training hangs.")
    min_seconds: Number = Field(
        default=60.0,
        gt=0,
        description="Minimum step timeout in seconds, and the further seconds until a process that hangs is ended.",
    )
    factor: Number = Field(default=20.0, ge=1, description="Step timeout as a multiple of the usual step time.")
    slow_seconds: Number = Field(
        default=1800.0,
        gt=0,
        description="Timeout in seconds of all other work: the first step, waiting for data, compiling, evaluation, a "
        "checkpoint.",
    )


class HealthSettings(Section):
    """Roll-back to an older checkpoint after a problem with the loss; the batches that caused it are skipped."""

    nonfinite_limit: Positive = Field(
        default=3,
        le=100,
        description="Consecutive updates with a loss or gradient that is NaN or infinite after which the run rolls "
        "back; each such update is dropped.",
    )
    spike: Flag = Field(default=True, description="Whether the run rolls back after a spike of the loss.")
    window: Positive = Field(
        default=64, le=100, description="Number of recent losses that form the baseline of spike detection."
    )
    spike_zscore: Number = Field(
        default=8.0, gt=0, description="Spike threshold: robust standard deviations above the median of the baseline."
    )
    spike_min_rise: Number = Field(
        default=0.3,
        gt=0,
        description="Minimum rise of a spike above the median of the baseline, as a fraction of the median.",
    )
    spike_steps: Positive = Field(
        default=3, le=20, description="Consecutive losses above both thresholds that make a spike."
    )
    max_rollbacks: Natural = Field(default=8, description="Maximum number of roll-backs; the next one ends the run.")


class EarlyStoppingSettings(Section):
    """The end of a run whose evaluations no longer improve."""

    patience: Natural = Field(
        default=0,
        description="Evaluations in a row without an improvement after which the run is stopped; 0 disables early "
        "stopping. A checkpoint is saved after each evaluation that is the best so far, and the best one is kept.",
    )
    metric: EvaluationMetric = Field(
        default="eval_loss",
        description="Metric of an evaluation that is to improve: eval_loss or eval_bits_per_byte, which are to fall, "
        "or eval_reward_accuracy of preferences, which is to rise.",
    )
    min_delta: Number = Field(
        default=0.0,
        ge=0,
        description="Change since the last improvement that must be exceeded to count as an improvement.",
    )

    @property
    def rule(self) -> EarlyStopping | None:
        """Return the rule, None if early stopping is disabled."""
        return EarlyStopping(self.metric, self.patience, self.min_delta) if self.patience else None


class RecoverySettings(Section):
    """Reaction of a run to signals, crashes, hangs and diverging losses."""

    grace_seconds: Number = Field(
        default=30.0,
        gt=0,
        description="Seconds between a signal and the forced end of the process. Work that does not finish within the "
        "first half is abandoned in favor of the last checkpoint.",
    )
    post_mortems: Natural = Field(
        default=5, description="Number of the newest failures whose post-mortems stay in the run folder; 0 writes none."
    )
    supervisor: SupervisorSettings = Field(
        default_factory=SupervisorSettings, description="Conditions for restarts of a dead run by `train --supervise`."
    )
    health: HealthSettings = Field(
        default_factory=HealthSettings, description="Conditions for a roll-back to an older checkpoint."
    )
    early_stopping: EarlyStoppingSettings = Field(
        default_factory=EarlyStoppingSettings,
        description="Conditions for the end of a run whose evaluations no longer improve.",
    )
    watchdog: WatchdogSettings = Field(
        default_factory=WatchdogSettings, description="Conditions under which a run without progress counts as hung."
    )


class ResourceSettings(Section):
    """Limits on memory and prefetching, and their automatic adjustment."""

    auto_tune: Flag = Field(
        default=True,
        description="Whether to adjust prefetching, reader threads, micro-batch size and checkpoint frequency to the "
        "free resources of the machine during the run.",
    )
    max_memory: Annotated[Number, Field(gt=0.1, le=1)] = Field(
        default=0.85,
        description="Fraction of host memory in use above which the run reduces its own use; 1 disables this.",
    )
    io_queue_size: Positive = Field(
        default=32, description="Maximum number of batches prepared ahead when training waits for data."
    )
    policy: Text = Field(
        default="balance", description="Policy that makes the adjustments: balance, or one from another package."
    )
    policy_options: dict[str, Any] | None = Field(
        default=None, description="Arguments of an outside policy; null passes none."
    )
    gpu_memory_fraction: Annotated[Number, Field(gt=0, le=1)] = Field(
        default=0.9,
        description="Fraction of GPU memory (on a CPU: of free host memory) that optimizer.micro_batch=auto may use.",
    )
    grow_after: Natural = Field(
        default=200,
        description="Steps without an out-of-memory error before a larger micro-batch is tried again; doubles after "
        "each failure. 0 disables it; runs of several processes never try.",
    )
