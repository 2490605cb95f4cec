"""Settings of a model's layers that the built-in kinds of model share."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from holdfast.configs.sections.base import Number, Positive, Section, Text
from holdfast.domain.sizes import size_in_bytes

_POLICY = re.compile(r"none|full|every:[1-9][0-9]*")
BUDGET = "budget:"


class LoraSettings(Section):
    """Low-rank adapters (LoRA) beside a model's linear layers; only the adapters are trained and saved."""

    rank: Positive = Field(
        default=16, description="Rank of an adapter; its matrices have the shapes (rank, in) and (out, rank)."
    )
    alpha: Annotated[Number, Field(gt=0)] = Field(
        default=32.0, description="Scale of an adapter: its output is multiplied by alpha / rank."
    )
    dropout: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.0, description="Dropout probability of an adapter's input."
    )
    target_modules: Literal["auto"] | Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        default="auto",
        description="Names, or ends of names, of the linear layers that get adapters, such as [q_proj, v_proj]; auto "
        "means all but the head.",
    )
    quantize: Literal["none", "4bit"] = Field(
        default="none",
        description="Format of the frozen linear layers: none stores them in fp32, 4bit in nf4 of bitsandbytes "
        "(QLoRA).",
    )


def _policy(value: object) -> object:
    if isinstance(value, str) and value.startswith(BUDGET):
        size_in_bytes(value.removeprefix(BUDGET))
    elif isinstance(value, str) and not _POLICY.fullmatch(value):
        msg = f"is {value}: it must be none, full, every:N with N from 1, such as every:2, or budget:SIZE"
        raise ValueError(msg)
    return value


GradientCheckpointing = Annotated[
    str,
    Field(
        strict=True,
        description="Layers whose activations are recomputed in the backward pass to save memory: none, full, "
        "every:N, or budget:SIZE, such as budget:6GiB, for the smallest number of layers that keeps the "
        "activations of a micro-batch within that size.",
    ),
    BeforeValidator(_policy),
]
Compile = Annotated[
    Literal["auto", "none", "default", "reduce-overhead", "max-autotune"],
    Field(
        description="Mode of torch.compile for the layers during training: none, default, reduce-overhead or "
        "max-autotune; auto means default for a run on a CPU or one GPU that is long enough to repay the "
        "warm-up."
    ),
]
BalancingLoss = Annotated[
    Literal["auto"] | Annotated[Number, Field(ge=0)],
    Field(
        description="Coefficient of the load-balancing loss of a mixture of experts; 0 trains without it; auto means "
        "router_aux_loss_coef of the model's config."
    ),
]
Lora = Annotated[
    LoraSettings | None,
    Field(description="Adapters that train in place of the model's own weights; null trains all of them."),
]
