"""The parts of a decoder layer, named as in a Llama of Hugging Face."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from torch import nn
from torch.nn import functional
from typing_extensions import override

from holdfast.adapters.shared.decoder.decoder_attention import Attention, VarlenAttention

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from holdfast.adapters.shared.decoder.decoder_shape import (
        AttentionShape,
        DecoderShape,
        Dropout,
        MlpShape,
        NormShape,
        PositionShape,
        RopeScaling,
    )
    from holdfast.adapters.shared.modeling.tensor_parallel import ContextParallelism

    Rotation: TypeAlias = tuple[Tensor, Tensor]

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


@final
@dataclass(frozen=True, slots=True)
class LayerContext:
    """Values shared by all layers of a forward pass; not a NamedTuple, as FSDP would cast the rotation in it."""

    attention: Attention
    documents: Any
    rotation: Rotation | None


@final
class KVCache:
    """The keys and values of one layer for the tokens so far, each of shape (rows, heads, length, head size)."""

    def __init__(self) -> None:
        self._cached: tuple[Tensor, Tensor] | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append ``key`` and ``value`` of new tokens; return those of all tokens so far, in the same dtype.

        All are (rows, heads, length, head size).
        """
        if self._cached is not None:
            key, value = torch.cat((self._cached[0], key), dim=2), torch.cat((self._cached[1], value), dim=2)
        self._cached = key, value
        return key, value


def make_norm(shape: NormShape, size: int) -> nn.Module:
    """Return a norm over the last dimension, of ``size`` numbers."""
    kind = nn.RMSNorm if shape.kind == "rmsnorm" else nn.LayerNorm
    return kind(size, eps=shape.epsilon)


@final
class SelfAttention(nn.Module):
    """Attention of each token to those before it in its document, in heads."""

    def __init__(self, shape: AttentionShape, hidden_size: int, dropout: float) -> None:
        super().__init__()
        queries, shared = shape.num_heads * shape.head_size, shape.num_key_value_heads * shape.head_size
        self.q_proj = nn.Linear(hidden_size, queries, bias=shape.bias)
        self.k_proj = nn.Linear(hidden_size, shared, bias=shape.bias)
        self.v_proj = nn.Linear(hidden_size, shared, bias=shape.bias)
        self.o_proj = nn.Linear(queries, hidden_size, bias=shape.bias)
        self.head_size = shape.head_size
        self.dropout = dropout

    @override
    def forward(self, hidden: Tensor, context: LayerContext, kept: KVCache | None = None) -> Tensor:
        """Return the attention output of ``hidden``, (rows, length, hidden size), in the same shape."""
        query, key, value = (
            projection(hidden).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        if context.rotation is not None:
            query, key = rotate(query, context.rotation), rotate(key, context.rotation)
        if kept is not None:
            key, value = kept.extend(key, value)
        dropout = self.dropout if self.training else 0.0
        attended = context.attention.attend(query, key, value, context.documents, dropout=dropout)
        output: Tensor = self.o_proj(attended.transpose(1, 2).flatten(-2))
        return output


@final
class Mlp(nn.Module):
    """The feed-forward network: ``down(activation(up(x)))``, or ``down(activation(gate(x)) * up(x))``."""

    def __init__(self, shape: MlpShape, hidden_size: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden_size, shape.width, bias=shape.bias) if shape.gated else None
        self.up_proj = nn.Linear(hidden_size, shape.width, bias=shape.bias)
        self.down_proj = nn.Linear(shape.width, hidden_size, bias=shape.bias)
        self.activation = _ACTIVATIONS[shape.activation]

    @override
    def forward(self, hidden: Tensor) -> Tensor:
        """Return the result for ``hidden``, (rows, length, hidden size), in the same shape."""
        up = self.up_proj(hidden)
        inner = self.activation(up) if self.gate_proj is None else self.activation(self.gate_proj(hidden)) * up
        output: Tensor = self.down_proj(inner)
        return output


@final
class DecoderLayer(nn.Module):
    """Attention, then the MLP, each after a norm and with a residual connection."""

    def __init__(self, shape: DecoderShape, dropout: Dropout) -> None:
        super().__init__()
        self.input_layernorm = make_norm(shape.norm, shape.hidden_size)
        self.self_attn = SelfAttention(shape.attention, shape.hidden_size, dropout.attention)
        self.post_attention_layernorm = make_norm(shape.norm, shape.hidden_size)
        self.mlp = Mlp(shape.mlp, shape.hidden_size)
        self.dropout = nn.Dropout(dropout.residual)

    @override
    def forward(self, hidden: Tensor, context: LayerContext, kept: KVCache | None = None) -> Tensor:
        """Return the next ``hidden``, (rows, length, hidden size)."""
        hidden = hidden + self.dropout(self.self_attn(self.input_layernorm(hidden), context, kept))
        output: Tensor = hidden + self.dropout(self.mlp(self.post_attention_layernorm(hidden)))
        return output


@final
class ContextAttention(Attention):
    """Attention to all tokens of a row, by some of the heads on each rank."""

    def __init__(self, context: ContextParallelism) -> None:
        self._context = context
        self._inner = VarlenAttention()

    @override
    def separate(self, position_ids: Tensor, *, is_packed: bool | None) -> tuple[Tensor, int]:
        return self._context.documents

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, documents: Any, *, dropout: float) -> Tensor:
        query, key, value = (self._context.to_heads(each) for each in (query, key, value))
        return self._context.to_tokens(self._inner.attend(query, key, value, documents, dropout=dropout))


def rotation(position_ids: Tensor, positions: PositionShape, head_size: int) -> Rotation:
    """Return cosines and sines for ``rotate``, fp32 (rows, 1, length, head size).

    They are recomputed each time: a buffer would be rounded with the weights when an engine converts these to bf16.
    """
    exponents = torch.arange(0, head_size, 2, dtype=torch.float32, device=position_ids.device) / head_size
    frequencies = 1.0 / positions.theta**exponents
    if positions.scaling is not None:
        frequencies = _scaled(frequencies, positions.scaling)
    angles = position_ids[:, None, :, None].float() * frequencies
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, by: Rotation) -> Tensor:
    """Return ``heads``, (rows, heads, length, head size), with elements i and i + head size / 2 rotated as a pair."""
    cosines, sines = by
    first, second = heads.chunk(2, dim=-1)
    return (heads * cosines + torch.cat((-second, first), dim=-1) * sines).to(heads.dtype)


def _scaled(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = kept.clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor
