"""The decoder network, with the interface of Hugging Face's causal models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from holdfast.adapters.shared.decoder.cached_generation import generate
from holdfast.adapters.shared.decoder.decoder_attention import Attention, SdpaAttention
from holdfast.adapters.shared.decoder.layers import DecoderLayer, KVCache, LayerContext, make_norm
from holdfast.adapters.shared.decoder.rope import rotation
from holdfast.adapters.shared.decoder.weight_names import from_huggingface, to_huggingface

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import GenerationConfig

    from holdfast.adapters.shared.decoder.decoder_config import DecoderConfig
    from holdfast.adapters.shared.decoder.decoder_shape import DecoderShape, Dropout


class DecoderOutput(NamedTuple):
    """The output of ``DecoderModel``: (rows, length, hidden size), and each layer's cache with ``use_cache``."""

    last_hidden_state: Tensor
    past_key_values: Sequence[KVCache] | None


class Logits(NamedTuple):
    """The output of ``DecoderNetwork``: (rows, length, vocabulary), and each layer's cache with ``use_cache``."""

    logits: Tensor
    past_key_values: Sequence[KVCache] | None


@final
class DecoderModel(nn.Module):
    """The embeddings, layers and final norm.

    In training each ``gradient_checkpointing_every``-th layer, from the first on, stores only its input and is
    recomputed in the backward pass; 0 stores everything.
    """

    def __init__(self, shape: DecoderShape, dropout: Dropout, attention: Attention) -> None:
        super().__init__()
        is_learned = shape.positions.kind == "learned"
        self.embed_tokens = nn.Embedding(shape.vocabulary_size, shape.hidden_size)
        self.embed_positions = nn.Embedding(shape.positions.longest, shape.hidden_size) if is_learned else None
        self.dropout = nn.Dropout(dropout.embedding)
        self.layers = nn.ModuleList(DecoderLayer(shape, dropout) for _ in range(shape.num_layers))
        self.norm = make_norm(shape.norm, shape.hidden_size)
        self.gradient_checkpointing_every = 0
        self._shape = shape
        self._attention = attention

    @override
    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        *,
        use_cache: bool = False,
        past_key_values: Sequence[KVCache] | None = None,
        is_packed: bool | None = None,
    ) -> DecoderOutput:
        """Return the hidden states of ``input_ids``; both ids int64 (rows, length), positions 0 where documents begin.

        ``is_packed`` is whether any row holds several documents; on an accelerator None assumes so. With ``use_cache``
        rows are one document, and ``past_key_values`` are those of its earlier tokens.
        """
        kept = (past_key_values or [KVCache() for _ in self.layers]) if use_cache else None
        context = self._context(position_ids, is_packed=is_packed, keeps=use_cache)
        hidden = self.embed_tokens(input_ids)
        if self.embed_positions is not None:
            hidden = hidden + self.embed_positions(position_ids)
        hidden = self.dropout(hidden)
        every = self.gradient_checkpointing_every if self.training and kept is None else 0
        for number, layer in enumerate(self.layers):
            if every and number % every == 0:
                hidden = checkpoint(layer, hidden, context, use_reentrant=False)
            else:
                hidden = layer(hidden, context, kept[number] if kept else None)
        return DecoderOutput(self.norm(hidden), kept)

    def _context(self, position_ids: Tensor, *, is_packed: bool | None, keeps: bool) -> LayerContext:
        # other implementations need not support fewer queries than keys
        attention = SdpaAttention() if keeps else self._attention
        documents = attention.separate(position_ids, is_packed=False if keeps else is_packed)
        turned = None
        if self.embed_positions is None:
            turned = rotation(position_ids, self._shape.positions, self._shape.attention.head_size)
        return LayerContext(attention, documents, turned)


@final
class DecoderNetwork(nn.Module):
    """A causal language model: ``DecoderModel`` and the matrix that turns hidden states into logits."""

    generation_config: GenerationConfig | None = None

    def __init__(self, config: DecoderConfig, attention: Attention) -> None:
        super().__init__()
        shape = config.shape
        self.config = config
        self.model = DecoderModel(shape, config.dropout, attention)
        self.lm_head = nn.Linear(shape.hidden_size, shape.vocabulary_size, bias=False)
        self.tie_weights()

    @override
    def forward(self, input_ids: Tensor, position_ids: Tensor, **options: Any) -> Logits:
        """Return the logits of the next tokens, (rows, length, vocabulary); arguments as in ``DecoderModel``."""
        hidden, kept = self.model(input_ids, position_ids, **options)
        return Logits(self.lm_head(hidden), kept)

    def tie_weights(self) -> None:
        """Share one matrix between embedding and output if the shape is tied; call it after tensors were replaced."""
        if self.config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def base_model(self) -> DecoderModel:
        """Return the model without the output matrix."""
        return self.model

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        return self.model.embed_tokens.weight.device

    @property
    def gradient_checkpointing_every(self) -> int:
        """Return n if each n-th layer is recomputed in the backward pass, 0 if none is."""
        return self.model.gradient_checkpointing_every

    @gradient_checkpointing_every.setter
    def gradient_checkpointing_every(self, every: int) -> None:
        self.model.gradient_checkpointing_every = every

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the embedding of tokens."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        """Return the output matrix."""
        return self.lm_head

    def generate(self, input_ids: Tensor, **options: Any) -> Tensor:
        """Return ``input_ids``, int64 (rows, length), and new tokens after them, in the same dtype.

        Options are those of ``cached_generation.generate``.
        """
        return generate(self, input_ids, **options)

    def to_huggingface(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this network's ``tensors`` in the names and shapes of the Hugging Face model that ``config`` names."""
        return to_huggingface(self.config.model_type, tensors)

    def from_huggingface(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``tensors`` of the Hugging Face model that ``config`` names in this network's names and shapes."""
        ours = from_huggingface(self.config.model_type, tensors)
        if self.config.tie_word_embeddings:
            ours.pop("lm_head.weight", None)  # some files contain the tied matrix twice
        return ours
