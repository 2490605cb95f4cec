"""The optimizer, its batch and its number format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Tag, ValidationInfo, field_validator, model_validator

from holdfast.configs.sections.base import PLUGIN, Flag, Number, Positive, Section, Text, by_kind
from holdfast.configs.sections.schedule import ScheduleSettings

EPSILON = 1e-8
Share = Annotated[Number, Field(ge=0, lt=1)]

_LARGEST_RATE = 1e19


class StepSettings(Section):
    """Settings that all optimizers share: the learning rate and the batch."""

    kind: Text = Field(description="Name under which the outside adapter is registered.")
    learning_rate: Annotated[Number, Field(gt=0)] = Field(default=3e-3, description="Peak learning rate, above 0.")
    schedule: ScheduleSettings = Field(default_factory=ScheduleSettings, description="The learning rate over the run.")
    batch_size: Positive | Literal["auto"] | None = Field(
        default=8,
        description="Sequences in an optimizer step, over all processes; auto chooses the number by the Step Law for "
        "the run's budget when the run begins; null if batch_tokens is set.",
    )
    batch_tokens: Positive | None = Field(
        default=None,
        validate_default=True,
        description="Tokens in an optimizer step, instead of batch_size; converted to whole rows of "
        "data.sequence_length.",
    )
    micro_batch: Positive | Literal["auto"] | None = Field(
        default="auto",
        description="Sequences per forward pass on each process. auto uses the size that fitted in an earlier run, or "
        "finds the largest that fits in memory; null uses the size that fitted in an earlier run, or the "
        "process's whole share of the batch.",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_default_rows(cls, section: Any) -> Any:
        is_in_tokens = isinstance(section, Mapping) and section.get("batch_tokens") is not None
        return {"batch_size": None, **section} if is_in_tokens else section

    @field_validator("batch_tokens")
    @classmethod
    def _is_the_only_size(cls, tokens: int | None, info: ValidationInfo) -> int | None:
        if tokens is not None and info.data.get("batch_size") is not None:
            other = f"optimizer.batch_size, which is {info.data['batch_size']}"
            msg = f"is set together with {other}: set one of the two to null"
            raise ValueError(msg)
        if tokens is None and "batch_size" in info.data and info.data["batch_size"] is None:
            msg = "is null, and so is optimizer.batch_size: set one of the two"
            raise ValueError(msg)
        return tokens

    @field_validator("learning_rate")
    @classmethod
    def _has_a_finite_result(cls, learning_rate: float) -> float:
        if learning_rate > _LARGEST_RATE:
            msg = (
                f"is {learning_rate:g}, but the square of an update of that size overflows in fp32: it must be at most "
                f"{_LARGEST_RATE:g}, and is useful far below 1"
            )
            raise ValueError(msg)
        return learning_rate

    @field_validator("micro_batch")
    @classmethod
    def _fits_the_batch(cls, micro_batch: int | str | None, info: ValidationInfo) -> int | str | None:
        batch_size = info.data.get("batch_size")
        if isinstance(micro_batch, int) and isinstance(batch_size, int) and micro_batch > batch_size:
            msg = f"must be at most optimizer.batch_size, which is {batch_size}"
            raise ValueError(msg)
        return micro_batch

    @property
    def num_rows(self) -> int:
        """Return the sequences in an optimizer step; the number must be known, not ``auto``."""
        assert isinstance(self.batch_size, int)
        return self.batch_size

    @property
    def fixed_micro_batch(self) -> int | None:
        """Return the configured micro-batch size; None if the size is searched for."""
        return self.micro_batch if isinstance(self.micro_batch, int) else None


class EmaSettings(Section):
    """An exponential moving average of the weights, which is evaluated and saved beside them."""

    decay: Annotated[Number, Field(gt=0, lt=1)] = Field(
        default=0.999,
        description="Share of the average that a step keeps, between 0 and 1; after step n at most (1 + n) / (10 + n), "
        "so that the first weights are forgotten early.",
    )


class DpoSettings(Section):
    """Direct preference optimization (DPO), the loss of preferences."""

    beta: Annotated[Number, Field(gt=0)] = Field(
        default=0.1,
        description="Strength of the tie to the reference model, above 0: the larger it is, the less the model departs "
        "from it.",
    )
    label_smoothing: Annotated[Number, Field(ge=0, lt=0.5)] = Field(
        default=0.0, description="Share of the pairs whose labels are taken to be wrong, from 0 to below 0.5."
    )
    disable_dropout: Flag = Field(
        default=True,
        description="Whether the model's own dropout is off while it learns preferences; that of adapters "
        "(model.lora.dropout) stays.",
    )


class TorchOptimizerSettings(StepSettings):
    """An optimization algorithm of torch or its libraries."""

    algorithm: Literal["adamw", "muon", "lion", "adamw_8bit"] = Field(
        default="adamw",
        description="Optimization algorithm: adamw; muon for hidden matrices, with AdamW for the other parameters; "
        "lion; or adamw_8bit, AdamW with a state of 8 bits per number.",
    )
    weight_decay: Annotated[Number, Field(ge=0)] = Field(
        default=0.1, description="Decoupled weight decay coefficient; norms and biases are not decayed."
    )
    decay_embeddings: Flag = Field(default=True, description="Whether weight decay applies to the embeddings too.")
    betas: tuple[Share, Share] = Field(
        default=(0.9, 0.95),
        description="Decay rates of the running means of the gradient and of its square, from 0 to below 1.",
    )
    epsilon: Annotated[Number, Field(gt=0)] = Field(
        default=EPSILON, description="Epsilon added to the denominator of the update, above 0; not used by lion."
    )
    clip: Annotated[Number, Field(gt=0)] = Field(
        default=1.0, description="Maximum norm of the gradient, above 0; a larger gradient is scaled down to it."
    )
    ema: EmaSettings | None = Field(
        default=None,
        description="Average of the weights that evaluations, samples and commands use in place of the weights "
        "themselves; null keeps none.",
    )
    dpo: DpoSettings = Field(
        default_factory=DpoSettings, description="The loss of preferences, with data.task=preference."
    )
    precision: Literal["auto", "fp32", "bf16", "fp16", "fp8"] = Field(
        default="auto",
        description="Number format of the computation: fp32, bf16, fp16 with loss scaling, or fp8 for large layers "
        "with bf16 for the others; auto means bf16 if the device is fast at it.",
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        default="auto", description="Device to train on; auto uses an accelerator if there is one."
    )

    @field_validator("epsilon")
    @classmethod
    def _has_a_denominator(cls, epsilon: float, info: ValidationInfo) -> float:
        if epsilon != EPSILON and info.data.get("algorithm") == "lion":
            msg = "has no effect, as optimizer.algorithm=lion takes the sign of the update: leave it out"
            raise ValueError(msg)
        return epsilon

    @property
    def ema_decay(self) -> float | None:
        """Return the decay of the average of the weights, None if there is none."""
        return None if self.ema is None else self.ema.decay


class AccelerateOptimizerSettings(TorchOptimizerSettings):
    """An optimization algorithm under Hugging Face Accelerate."""

    config: ClassVar[str | None] = None

    kind: Literal["accelerate"] = Field(
        default="accelerate", description="accelerate trains under Hugging Face Accelerate and torch."
    )
    sharding: Literal["auto", "ddp", "fsdp2"] = Field(
        default="auto",
        description="Distribution of the model over several processes: with ddp each holds the whole model, with "
        "fsdp2 a shard of it; auto means ddp, or fsdp2 if the whole model does not fit on one GPU.",
    )
    offload: Flag = Field(default=False, description="Whether the shards of fsdp2 stay in host memory between uses.")


class DeepspeedOptimizerSettings(TorchOptimizerSettings):
    """An optimization algorithm under DeepSpeed ZeRO."""

    sharding: ClassVar[str] = ""

    kind: Literal["deepspeed"] = Field(default="deepspeed", description="deepspeed trains under DeepSpeed's ZeRO.")
    stage: Literal[1, 2, 3] | None = Field(
        default=None,
        description="ZeRO stage: 1 shards the optimizer state over processes, 2 the gradients too, 3 the parameters "
        "too; null means the stage in config, or 2.",
    )
    offload: Literal["none", "cpu", "nvme"] | None = Field(
        default=None, description="Device that holds the optimizer state; null means the one in config, or none."
    )
    offload_parameters: Literal["none", "cpu", "nvme"] | None = Field(
        default=None, description="Device that holds the parameters of stage 3; null means the one in config, or none."
    )
    config: Text | None = Field(
        default=None,
        description="A DeepSpeed JSON file, used unchanged; values that contradict the run's settings are refused, "
        "and a scheduler is ignored.",
    )

    @field_validator("ema")
    @classmethod
    def _has_no_average(cls, ema: EmaSettings | None) -> EmaSettings | None:
        if ema is not None:
            msg = "is for optimizer.kind=accelerate only, as DeepSpeed keeps the weights in a form of its own: set it "
            raise ValueError(msg + "to null")
        return ema

    @field_validator("precision")
    @classmethod
    def _is_one_of_its_engine(cls, precision: str) -> str:
        if precision not in ("auto", "fp32", "bf16"):
            msg = f"is {precision}, which is for optimizer.kind=accelerate only: set optimizer.precision=bf16"
            raise ValueError(msg)
        return precision


class PluginOptimizerSettings(StepSettings):
    """An optimizer that is not built in."""

    device: ClassVar[str | None] = None
    precision: ClassVar[str] = "fp32"
    sharding: ClassVar[str] = ""
    offload: ClassVar[bool] = False
    config: ClassVar[str | None] = None
    dpo: ClassVar[DpoSettings] = DpoSettings()

    options: dict[str, Any] = Field(default_factory=dict, description="Arguments of the outside adapter's constructor.")


OptimizerSettings = Annotated[
    Annotated[AccelerateOptimizerSettings, Tag("accelerate")]
    | Annotated[DeepspeedOptimizerSettings, Tag("deepspeed")]
    | Annotated[PluginOptimizerSettings, Tag(PLUGIN)],
    by_kind("accelerate", "deepspeed"),
]
