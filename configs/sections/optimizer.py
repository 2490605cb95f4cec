"""How the model learns."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, ValidationInfo, field_validator

from configs.sections.base import PLUGIN, Natural, Number, Positive, Section, Text, by_kind

Share = Annotated[Number, Field(ge=0, lt=1)]


class ScheduleSettings(Section):
    """The learning rate over a run: linear warm-up, then a half cosine."""

    warmup_steps: Natural = Field(default=20, description="Steps over which the learning rate rises to its peak.")
    floor: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=0.1, description="Learning rate at the end of the run, as a share of its peak, from 0 to 1."
    )


class StepSettings(Section):
    """What every optimizer shares: how large a step is and how many sequences it sees."""

    kind: Text = Field(description="Name under which the outside adapter is registered.")
    learning_rate: Annotated[Number, Field(gt=0)] = Field(default=3e-3, description="Peak learning rate, above 0.")
    schedule: ScheduleSettings = Field(default_factory=ScheduleSettings, description="The learning rate over the run.")
    batch_size: Positive = Field(default=8, description="Sequences in an optimizer step, over all processes.")
    micro_batch: Positive | None = Field(
        default=None, description="Sequences that go through the model at once; null means the whole batch."
    )

    @field_validator("micro_batch")
    @classmethod
    def _fits_the_batch(cls, micro_batch: int | None, info: ValidationInfo) -> int | None:
        batch_size = info.data.get("batch_size")
        if micro_batch is not None and batch_size is not None and micro_batch > batch_size:
            msg = f"must be at most optimizer.batch_size, which is {batch_size}"
            raise ValueError(msg)
        return micro_batch


class AccelerateOptimizerSettings(StepSettings):
    """AdamW under Hugging Face Accelerate."""

    kind: Literal["accelerate"] = Field(default="accelerate", description="AdamW under Hugging Face Accelerate.")
    weight_decay: Annotated[Number, Field(ge=0)] = Field(
        default=0.1, description="Decoupled weight decay, as a share of the learning rate."
    )
    betas: tuple[Share, Share] = Field(
        default=(0.9, 0.95),
        description="Decay of the running means of the gradient and of its square, from 0 to below 1.",
    )
    epsilon: Annotated[Number, Field(gt=0)] = Field(
        default=1e-8, description="Added to the denominator of the update, above 0."
    )
    clip: Annotated[Number, Field(gt=0)] = Field(
        default=1.0, description="Norm to which a larger gradient is scaled down, above 0."
    )
    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto", description="Number format of the computation; auto takes bf16 where the device is fast at it."
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        default="auto", description="Device to train on; auto takes an accelerator if there is one."
    )


class PluginOptimizerSettings(StepSettings):
    """An optimizer that is not built in."""

    options: dict[str, Any] = Field(default_factory=dict, description="What the outside adapter is to be given.")


OptimizerSettings = Annotated[
    Annotated[AccelerateOptimizerSettings, Tag("accelerate")] | Annotated[PluginOptimizerSettings, Tag(PLUGIN)],
    by_kind("accelerate"),
]
