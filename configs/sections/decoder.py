"""A decoder of our own, part by part."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from holdfast.configs.sections.base import Flag, Number, Positive, Section, Text
from holdfast.configs.sections.compile import Compile  # noqa: TC001  pydantic asks for it
from holdfast.configs.sections.lora import LoraSettings  # noqa: TC001  pydantic asks for it
from holdfast.configs.sections.memory import GradientCheckpointing  # noqa: TC001  pydantic asks for it

Share = Annotated[Number, Field(ge=0, lt=1)]
AboveZero = Annotated[Number, Field(gt=0)]

_NO_SHAPE = frozenset(
    {
        *("kind", "path", "dropout", "attention", "initialisation", "initializer_range", "loss"),
        *("gradient_checkpointing", "compile", "lora"),
    }
)


class RopeScalingSettings(Section):
    """How rotary positions reach further than those that weights were trained on."""

    kind: Literal["linear", "llama3"] = Field(
        description="linear slows all rotations down; llama3 only those that turn little within the original positions."
    )
    factor: Annotated[Number, Field(ge=1)] = Field(description="How many times slower, at least 1.")
    low_freq_factor: AboveZero = Field(
        default=1.0,
        description="For llama3: turns within the original positions below which a rotation is slowed fully.",
    )
    high_freq_factor: AboveZero = Field(
        default=4.0, description="For llama3: turns within the original positions above which a rotation is kept."
    )
    original_max_position_embeddings: Positive = Field(
        default=8192, description="For llama3: positions that the weights were trained on."
    )


class DropoutSettings(Section):
    """What training drops, as shares from 0 to below 1."""

    embedding: Share = Field(default=0.0, description="Share of the embeddings' numbers that is dropped.")
    attention: Share = Field(default=0.0, description="Share of attention's weights that is dropped.")
    residual: Share = Field(default=0.0, description="Share of what attention and MLP add that is dropped.")


class DecoderModelSettings(Section):
    """A decoder of our own: Llama-like, GPT-2-like, or what lies between; the defaults are a small Llama."""

    kind: Literal["decoder"] = Field(default="decoder", description="A decoder of our own.")
    path: Text | None = Field(
        default=None,
        description="A folder whose Llama, Starcoder2, GPT-2 or own weights are continued; the shape is theirs.",
    )
    vocab_size: Positive | None = Field(
        default=None, description="Ids that the model embeds; null means as many as the tokenizer has."
    )
    hidden_size: Positive = Field(default=192, description="Numbers that a token is between layers.")
    intermediate_size: Positive = Field(default=512, description="Numbers that a token is inside the MLP.")
    num_hidden_layers: Positive = Field(default=4, description="Layers.")
    num_attention_heads: Positive = Field(default=6, description="Query heads of attention.")
    num_key_value_heads: Positive | None = Field(
        default=2, description="Key and value heads, which divide the query heads; null means as many."
    )
    head_dim: Positive | None = Field(
        default=None, description="Numbers of a head; null means hidden_size / num_attention_heads."
    )
    max_position_embeddings: Positive = Field(default=2048, description="Positions: the longest row there may be.")
    positions: Literal["rope", "learned"] = Field(
        default="rope", description="rope turns queries and keys, learned adds a vector to each token."
    )
    rope_theta: Annotated[Number, Field(gt=1)] = Field(
        default=10_000.0, description="Base of the rotations' wavelengths, above 1."
    )
    rope_scaling: RopeScalingSettings | None = Field(
        default=None, description="How rotations are slowed down to reach further; null means they are not."
    )
    norm: Literal["rmsnorm", "layernorm"] = Field(
        default="rmsnorm", description="rmsnorm has a scale, layernorm a scale and a shift."
    )
    norm_epsilon: AboveZero = Field(default=1e-6, description="Added to the mean square in norms, above 0.")
    activation: Literal["silu", "gelu", "gelu_tanh", "relu"] = Field(
        default="silu", description="Function inside the MLP."
    )
    gated: Flag = Field(
        default=True, description="Whether the MLP has a third matrix that gates; with silu that is SwiGLU."
    )
    attention_bias: Flag = Field(default=False, description="Whether attention's matrices have biases.")
    mlp_bias: Flag = Field(default=False, description="Whether the MLP's matrices have biases.")
    tie_word_embeddings: Flag = Field(default=True, description="Whether the embedding also predicts the next token.")
    dropout: DropoutSettings | None = Field(
        default=None, description="What training drops; null means what path's config says, and else nothing."
    )
    initialisation: Literal["auto", "llama", "gpt2"] = Field(
        default="auto",
        description="llama draws all matrices alike, gpt2 those that end a residual branch smaller; auto means gpt2 "
        "with learned positions and else llama.",
    )
    initializer_range: AboveZero = Field(
        default=0.02, description="Standard deviation of new matrices and embeddings, above 0."
    )
    attention: Literal["auto", "sdpa", "varlen"] = Field(
        default="auto",
        description="Implementation of attention: torch's with a mask, or its kernel for packed documents.",
    )

    loss: Text = Field(
        default="auto",
        description="chunked never holds all logits, plain does, liger needs that package; any other is an outside "
        "loss; auto means chunked.",
    )
    gradient_checkpointing: GradientCheckpointing = Field(
        default="none",
        description="Layers that are computed again in the backward to save memory: none, full, every:N, or as few "
        "as keep a micro-batch's activations within budget:SIZE, such as budget:6GiB.",
    )
    compile: Compile = Field(
        default="auto",
        description="Mode of torch.compile for the layers in training: none, default, reduce-overhead, max-autotune; "
        "auto means default where a long run on a CPU or one GPU repays the warm-up.",
    )
    lora: LoraSettings | None = Field(
        default=None, description="Adapters that train in place of the model's own weights; null trains all of them."
    )

    @model_validator(mode="after")
    def _leaves_the_shape_to_path(self) -> Self:
        if self.path is not None and (chosen := [name for name in self._shape_fields() if self._differs(name)]):
            msg = f"has both path and {chosen[0]}: the shape is that of path, so leave {chosen[0]} out"
            raise ValueError(msg)
        return self

    @property
    def shape(self) -> dict[str, Any]:
        """Return the fields that decide the model's shape, by name; none if it is that of ``path``."""
        return {} if self.path is not None else self.model_dump(include=set(self._shape_fields()))

    @property
    def dropped(self) -> dict[str, float] | None:
        """Return the shares that training drops, by name."""
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
