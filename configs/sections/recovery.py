"""What a run does about signals and failures."""

from __future__ import annotations

from pydantic import Field

from holdfast.configs.sections.base import Flag, Natural, Number, Positive, Section


class SupervisorSettings(Section):
    """When `train --supervise` starts a dead run again."""

    max_restarts: Natural = Field(default=100, description="Restarts after a crash, at most.")
    crash_loop: Positive = Field(
        default=5, description="Deaths in a row without a new checkpoint after which the run is given up."
    )
    first_pause_seconds: Number = Field(
        default=1.0, ge=0, description="Pause before a restart; it doubles while there is no new checkpoint."
    )
    longest_pause_seconds: Number = Field(default=60.0, ge=0, description="The longest of these pauses.")


class WatchdogSettings(Section):
    """When a run that shows no sign of life is taken to hang."""

    enabled: Flag = Field(default=True, description="Whether a thread of each process watches over its training.")
    min_seconds: Number = Field(
        default=60.0, gt=0, description="Seconds that a step may take at least, and then once more before the end."
    )
    factor: Number = Field(default=20.0, ge=1, description="How many times the usual seconds a step may take.")
    slow_seconds: Number = Field(
        default=1800.0,
        gt=0,
        description="Seconds for anything else: the first step, data, compiling, evaluation, a checkpoint.",
    )


class HealthSettings(Section):
    """When a run goes back to an older checkpoint, and goes on behind the batches that led astray."""

    nonfinite_limit: Positive = Field(
        default=3,
        le=100,
        description="Updates in a row with a loss or gradient that is no number, each of which is dropped, after which "
        "the run goes back.",
    )
    spike: Flag = Field(default=True, description="Whether the run goes back behind a spike of the loss.")
    window: Positive = Field(default=64, le=100, description="Losses from which one of a spike stands out.")
    spike_zscore: Number = Field(
        default=8.0, gt=0, description="Robust standard deviations by which it does, above the median."
    )
    spike_min_rise: Number = Field(default=0.3, gt=0, description="Share of the median by which it does at least.")
    spike_steps: Positive = Field(default=3, le=20, description="Losses in a row that make a spike.")
    max_rollbacks: Natural = Field(default=8, description="Returns after which the next one ends the run.")


class RecoverySettings(Section):
    """How a run survives what befalls it."""

    grace_seconds: Number = Field(
        default=30.0,
        gt=0,
        description="Seconds between a signal and the end by force: what does not fit into half of them gives way to "
        "the last save.",
    )
    post_mortems: Natural = Field(
        default=5, description="Failures of which the run folder keeps what is known, the newest ones; 0 keeps none."
    )
    supervisor: SupervisorSettings = Field(
        default_factory=SupervisorSettings, description="When `train --supervise` starts a dead run again."
    )
    health: HealthSettings = Field(
        default_factory=HealthSettings, description="When the run goes back to an older checkpoint."
    )
    watchdog: WatchdogSettings = Field(
        default_factory=WatchdogSettings, description="When a run that shows no sign of life is taken to hang."
    )
