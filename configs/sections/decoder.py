"""Settings of the package's own decoder."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from holdfast.configs.sections.base import Flag, Number, Positive, Section, Text
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


Share = Annotated[Number, Field(ge=0, lt=1)]
AboveZero = Annotated[Number, Field(gt=0)]

_NO_SHAPE = frozenset(
    {
        *("kind", "path", "dropout", "attention", "initialisation", "initializer_range", "loss"),
        *("gradient_checkpointing", "compile", "lora"),
    }
)


class RopeScalingSettings(Section):
    """Scaling of rotary positions beyond those that the weights were trained on."""

    kind: Literal["linear", "llama3"] = Field(
        description="linear slows all rotations down; llama3 slows only those with few turns within the original "
        "positions."
    )
    factor: Annotated[Number, Field(ge=1)] = Field(description="Factor by which rotations are slowed, at least 1.")
    low_freq_factor: AboveZero = Field(
        default=1.0,
        description="For llama3: a rotation with fewer turns than this within the original positions is slowed fully.",
    )
    high_freq_factor: AboveZero = Field(
        default=4.0,
        description="For llama3: a rotation with more turns than this within the original positions is left unchanged.",
    )
    original_max_position_embeddings: Positive = Field(
        default=8192, description="For llama3: number of positions that the weights were trained on."
    )


class DropoutSettings(Section):
    """Dropout probabilities during training, from 0 to below 1."""

    embedding: Share = Field(default=0.0, description="Dropout probability of the embeddings.")
    attention: Share = Field(default=0.0, description="Dropout probability of the attention weights.")
    residual: Share = Field(default=0.0, description="Dropout probability of the outputs of attention and MLP.")


class DecoderModelSettings(Section):
    """The package's own decoder: like Llama, like GPT-2 or in between; the defaults are a small Llama."""

    revision: ClassVar[str | None] = None
    config: ClassVar[dict[str, Any] | None] = None
    trust_remote_code: ClassVar[str | None] = None
    trust_pickle: ClassVar[str | None] = None
    balancing_loss: ClassVar[str] = "auto"

    kind: Literal["decoder"] = Field(default="decoder", description="The decoder of this package.")
    path: Text | None = Field(
        default=None,
        description="Folder with weights of Llama, Starcoder2, GPT-2 or this decoder to start from; the shape is read "
        "from it.",
    )
    vocab_size: Positive | None = Field(
        default=None,
        description="Number of token ids that the model embeds; null means the size of the tokenizer's vocabulary.",
    )
    hidden_size: Positive = Field(default=192, description="Width of the hidden state between layers.")
    intermediate_size: Positive = Field(default=512, description="Width of the MLP's inner layer.")
    num_hidden_layers: Positive = Field(default=4, description="Number of layers.")
    num_attention_heads: Positive = Field(default=6, description="Number of query heads.")
    num_key_value_heads: Positive | None = Field(
        default=2,
        description="Number of key and value heads, a divisor of num_attention_heads; null means num_attention_heads.",
    )
    head_dim: Positive | None = Field(
        default=None, description="Width of a head; null means hidden_size / num_attention_heads."
    )
    max_position_embeddings: Positive = Field(
        default=2048, description="Number of positions: the longest row that the model can read."
    )
    positions: Literal["rope", "learned"] = Field(
        default="rope",
        description="Position encoding: rope rotates queries and keys; learned adds a trained vector per position.",
    )
    rope_theta: Annotated[Number, Field(gt=1)] = Field(
        default=10_000.0, description="Base of the rotations' wavelengths, above 1."
    )
    rope_scaling: RopeScalingSettings | None = Field(
        default=None, description="Scaling of the rotations for longer contexts; null means none."
    )
    norm: Literal["rmsnorm", "layernorm"] = Field(
        default="rmsnorm", description="Normalization: rmsnorm has a scale, layernorm a scale and a shift."
    )
    norm_epsilon: AboveZero = Field(
        default=1e-6, description="Epsilon added to the mean square (rmsnorm) or variance (layernorm), above 0."
    )
    activation: Literal["silu", "gelu", "gelu_tanh", "relu"] = Field(
        default="silu", description="Activation function of the MLP."
    )
    gated: Flag = Field(default=True, description="Whether the MLP has a gate matrix; with silu that is SwiGLU.")
    attention_bias: Flag = Field(default=False, description="Whether the projections of attention have biases.")
    mlp_bias: Flag = Field(default=False, description="Whether the MLP's matrices have biases.")
    tie_word_embeddings: Flag = Field(
        default=True, description="Whether the output layer shares its weights with the embedding."
    )
    dropout: DropoutSettings | None = Field(
        default=None,
        description="Dropout during training; null means that of the config at path, or none without path.",
    )
    initialisation: Literal["auto", "llama", "gpt2"] = Field(
        default="auto",
        description="Initialization: llama draws all matrices alike, gpt2 scales down those that end a residual "
        "branch; auto means gpt2 with learned positions, and llama otherwise.",
    )
    initializer_range: AboveZero = Field(
        default=0.02, description="Standard deviation of newly initialized matrices and embeddings, above 0."
    )
    attention: Literal["auto", "sdpa", "varlen"] = Field(
        default="auto",
        description="Implementation of attention: sdpa is torch's kernel with a mask, varlen torch's kernel for "
        "packed documents; auto chooses one of them.",
    )

    loss: Text = Field(
        default="auto",
        description="Implementation of the loss: chunked never holds all logits at once, plain holds all of them, "
        "liger needs the package of that name; any other name is an outside loss; auto means chunked.",
    )
    gradient_checkpointing: GradientCheckpointing = "none"
    compile: Compile = "auto"
    lora: Lora = None

    @model_validator(mode="after")
    def _leaves_the_shape_to_path(self) -> Self:
        if self.path is not None and (chosen := [name for name in self._shape_fields() if self._differs(name)]):
            msg = f"has both path and {chosen[0]}: the shape is that of path, so leave {chosen[0]} out"
            raise ValueError(msg)
        return self

    @property
    def shape(self) -> dict[str, Any]:
        """Return the fields that decide the model's shape, by name; empty if the shape comes from ``path``."""
        return {} if self.path is not None else self.model_dump(include=set(self._shape_fields()))

    @property
    def dropped(self) -> dict[str, float] | None:
        """Return the dropout probabilities by name, None if they come from ``path`` or are zero."""
        return None if self.dropout is None else self.dropout.model_dump()

    @property
    def loads_weights(self) -> bool:
        """Return whether training starts from the weights at ``path``."""
        return self.path is not None

    @classmethod
    def _shape_fields(cls) -> list[str]:
        return [name for name in cls.model_fields if name not in _NO_SHAPE]

    def _differs(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)
