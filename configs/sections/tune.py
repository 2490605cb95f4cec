"""Search for better settings by the command `tune`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from holdfast.configs.sections.base import EvaluationMetric, Positive, Section, Seed

Sampler = Literal["tpe", "random", "grid", "gp"]
Pruner = Literal["median", "percentile", "successive_halving", "hyperband", "threshold", "none"]


class TuneSettings(Section):
    """The search of `tune`: its sampler, its pruner and its objective; `train` does not use them."""

    sampler: Sampler = Field(
        default="tpe",
        description="Source of the parameters of each trial: tpe and gp learn from earlier trials, random does not, "
        "grid takes all combinations in turn.",
    )
    sampler_options: dict[str, Any] | None = Field(
        default=None, description="Arguments of Optuna's class of the sampler; null passes none."
    )
    pruner: Pruner = Field(
        default="median",
        description="Rule that stops a trial at an evaluation that is worse than those of earlier trials; none stops "
        "no trial.",
    )
    pruner_options: dict[str, Any] | None = Field(
        default=None, description="Arguments of Optuna's class of the pruner; null passes none."
    )
    metric: EvaluationMetric = Field(
        default="eval_loss",
        description="Metric of an evaluation by which trials are compared: eval_loss, eval_bits_per_byte, which also "
        "compares tokenizers, or eval_reward_accuracy of preferences, of which the highest is the best.",
    )
    objective: Literal["last", "best"] = Field(
        default="last", description="Evaluation of a complete trial that counts: its last or its best one."
    )
    seed: Seed | None = Field(
        default=None, description="Seed of the search, from 0 to 4294967295; null means run.seed."
    )
    parallel: Positive | None = Field(
        default=None,
        description="Trials that may train at once, on all machines together. The parameters of a trial depend on the "
        "trials before it, except the last ones, which may train beside it. null means the number of workers of the "
        "first start.",
    )
    most_failures: Positive = Field(
        default=3, description="Trials in a row that may fail before the search ends with an error."
    )
