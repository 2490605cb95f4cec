"""Adapters of low rank in place of training all weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from holdfast.configs.sections.base import Number, Positive, Section, Text


class LoraSettings(Section):
    """Adapters of low rank (LoRA) beside a model's linear layers: they train and are saved, its own weights are not."""

    rank: Positive = Field(default=16, description="Rank of an adapter: its matrices are rank x in and out x rank.")
    alpha: Annotated[Number, Field(gt=0)] = Field(
        default=32.0, description="What an adapter adds is scaled by alpha / rank."
    )
    dropout: Annotated[Number, Field(ge=0, lt=1)] = Field(
        default=0.0, description="Share of an adapter's inputs that training drops."
    )
    target_modules: Literal["auto"] | Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        default="auto",
        description="Names of the linear layers that get adapters, or how those end, such as [q_proj, v_proj]; auto "
        "means all but the head.",
    )
    quantize: Literal["none", "4bit"] = Field(
        default="none",
        description="What the model's own linear layers are kept in: none is fp32, 4bit nf4 of bitsandbytes (QLoRA).",
    )
