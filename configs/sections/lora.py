"""Low-rank adapters (LoRA) instead of training all weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from holdfast.configs.sections.base import Number, Positive, Section, Text


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
