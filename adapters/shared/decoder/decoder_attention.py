"""Attention implementations of the decoder: each token attends to earlier tokens of its document."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch._dynamo import maybe_mark_dynamic
from torch.nn.functional import scaled_dot_product_attention
from typing_extensions import override

from holdfast.adapters.shared.modeling.attention import varlen_attention
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class Attention(ABC):
    """Causal attention within documents.

    ``separate`` is called once per forward pass and ``attend`` once per layer, with the result of ``separate``: a mask,
    a block mask, the ends of documents, or any other value by which the implementation separates documents.
    """

    @abstractmethod
    def separate(self, position_ids: Tensor, *, is_packed: bool | None) -> Any:
        """Return the value that separates the documents with ``position_ids``, int64 (rows, length), from 0 on.

        ``is_packed`` is whether any row holds several documents; with None the implementation finds out, or assumes
        that some row does, without waiting for an accelerator.
        """

    @abstractmethod
    def attend(self, query: Tensor, key: Tensor, value: Tensor, documents: Any, *, dropout: float) -> Tensor:
        """Return the attention outputs, with dtype and shape of ``query``: (rows, heads, length, head size).

        ``key`` and ``value`` may have fewer heads, each of which then serves several query heads in a row.
        """


@final
class SdpaAttention(Attention):
    """torch's ``scaled_dot_product_attention``, with a boolean mask where rows hold several documents.

    The ``documents`` of ``attend`` are this mask, of shape (rows, 1, length, length), or None if each row is one
    document. Fewer queries than keys, as in generation, see all keys.
    """

    @override
    def separate(self, position_ids: Tensor, *, is_packed: bool | None) -> Tensor | None:
        if is_packed is None:
            # reading from an accelerator would stall it, and reading while compiling would break the graph
            can_ask = position_ids.device.type == "cpu" and not torch.compiler.is_compiling()
            is_packed = not can_ask or bool((position_ids[:, 1:] == 0).any())
        if not is_packed:
            return None
        numbers = document_numbers(position_ids)
        return (numbers[:, None, :, None] == numbers[:, None, None, :]).tril()

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, documents: Any, *, dropout: float) -> Tensor:
        sharing = query.shape[1] // key.shape[1]
        if sharing > 1 and documents is not None and query.device.type != "cpu":
            # with a mask, torch's fast kernels on accelerators do not support shared heads and store all weights
            key, value = (tensor.repeat_interleave(sharing, dim=1) for tensor in (key, value))
            sharing = 1
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=documents,
            dropout_p=dropout,
            is_causal=documents is None and query.shape[2] == key.shape[2],
            enable_gqa=sharing > 1,
        )


@final
class VarlenAttention(Attention):
    """torch's kernel for rows of documents on GPUs in half precision, elsewhere one document after the other.

    Its ``documents`` are a pair: the ends of the documents in the flattened rows, int32 (documents + 1,), with a first
    0, and a row's length, which no document exceeds. Finding the number of documents requires one wait for the
    accelerator per forward pass.
    """

    @override
    def separate(self, position_ids: Tensor, *, is_packed: bool | None) -> tuple[Tensor, int]:
        begins = position_ids == 0
        begins[:, 0] = True
        places = begins.flatten().nonzero()[:, 0]
        ends = torch.cat((places, places.new_tensor([position_ids.numel()]))).int()
        maybe_mark_dynamic(ends, 0)
        return ends, position_ids.shape[1]

    @override
    def attend(self, query: Tensor, key: Tensor, value: Tensor, documents: Any, *, dropout: float) -> Tensor:
        ends, longest = documents
        attended, _ = varlen_attention(
            _PLAIN, query, key, value, None, cu_seq_lens_q=ends, max_length_q=longest, dropout=dropout
        )
        return attended.transpose(1, 2)


_PLAIN = nn.Identity()  # a module without special demands on its attention
ATTENTIONS: Mapping[str, Attention] = MappingProxyType({"sdpa": SdpaAttention(), "varlen": VarlenAttention()})


def choose_attention(wanted: str) -> Attention:
    """Return the first known implementation in ``wanted``, names joined by commas; ``auto`` is sdpa.

    Raises ``ConfigurationError`` if none is known.
    """
    for name in wanted.split(","):
        if name in ATTENTIONS or name == "auto":
            return ATTENTIONS["sdpa" if name == "auto" else name]
    msg = f"model.attention is {wanted}, but a decoder has only auto, {', '.join(ATTENTIONS)}"
    raise ConfigurationError(msg)


def document_numbers(position_ids: Tensor) -> Tensor:
    """Return the number of each token's document in its row, int64 (rows, length): each position 0 begins one."""
    return (position_ids == 0).cumsum(dim=1)
