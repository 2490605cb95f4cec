"""The decoder network, with the interface of Hugging Face's causal models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from holdfast.adapters.shared.decoder.cached_generation import generate
from holdfast.adapters.shared.decoder.context_attention import ContextAttention
from holdfast.adapters.shared.decoder.decoder_attention import Attention, SdpaAttention
from holdfast.adapters.shared.decoder.layers import DecoderLayer, KVCache, LayerContext, make_norm
from holdfast.adapters.shared.decoder.rope import rotation
from holdfast.adapters.shared.decoder.weight_names import from_huggingface, to_huggingface

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from transformers import GenerationConfig

    from holdfast.adapters.shared.decoder.decoder_config import DecoderConfig
    from holdfast.adapters.shared.decoder.decoder_shape import DecoderShape, Dropout
    from holdfast.adapters.shared.modeling.context_parallel import ContextParallelism
    from holdfast.adapters.shared.modeling.pipeline_parallel import PipelineParallelism


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
        self.pipeline: PipelineParallelism | None = None
        self.embed_tokens = nn.Embedding(shape.vocabulary_size, shape.hidden_size)
        self.embed_positions = nn.Embedding(shape.positions.longest, shape.hidden_size) if is_learned else None
        self.dropout = nn.Dropout(dropout.embedding)
        self.layers = nn.ModuleList(DecoderLayer(shape, dropout) for _ in range(shape.num_layers))
        self.norm = make_norm(shape.norm, shape.hidden_size)
        self.gradient_checkpointing_every = 0
        self._shape = shape
        self.attention = attention

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
        kept = (past_key_values or [KVCache() for _ in range(self._shape.num_layers)]) if use_cache else None
        context = self._context(position_ids, is_packed=is_packed, keeps=use_cache)
        if (pipeline := self.pipeline) is not None:
            empty = torch.empty((*input_ids.shape, self._shape.hidden_size), device=input_ids.device)
            return DecoderOutput(
                pipeline.in_turn(
                    empty,
                    lambda stage, hidden: self._run_stage(
                        stage, hidden if stage else input_ids, position_ids, context, kept
                    ),
                ),
                kept,
            )
        hidden = self._embed(input_ids, position_ids)
        return DecoderOutput(self.norm(self._run(range(len(self.layers)), hidden, context, kept)), kept)

    def forward_stage(self, stage: int, values: Tensor, position_ids: Tensor) -> Tensor:
        """Return the hidden states after ``stage`` of the pipeline, (rows, length, hidden size).

        ``values`` are those after the stage before, or the ids int64 (rows, length) for the first stage.
        """
        return self._run_stage(stage, values, position_ids, self._context(position_ids, is_packed=None, keeps=False))

    def keep_stages(self, pipeline: PipelineParallelism) -> None:
        """Drop all but the stages of this rank; the tensors that stay have the names of the whole model."""
        numbers = [number for stage in pipeline.own_stages for number in pipeline.layers_of(stage)]
        self.register_module("layers", nn.ModuleDict({str(number): self.layers[number] for number in numbers}))
        if not pipeline.is_first:
            self.register_module("embed_tokens", None)
            self.embed_positions = None
        if not pipeline.is_last:
            self.register_module("norm", None)
        self.pipeline = pipeline

    def _run_stage(
        self,
        stage: int,
        values: Tensor,
        position_ids: Tensor,
        context: LayerContext,
        kept: Sequence[KVCache] | None = None,
    ) -> Tensor:
        pipeline = self.pipeline
        assert pipeline is not None, "only a pipeline has stages"
        hidden = values if stage else self._embed(values, position_ids)
        hidden = self._run(pipeline.layers_of(stage), hidden, context, kept)
        return self.norm(hidden) if stage == pipeline.num_stages - 1 else hidden

    def _embed(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        hidden = self.embed_tokens(input_ids)
        if self.embed_positions is not None:
            hidden = hidden + self.embed_positions(position_ids)
        embedded: Tensor = self.dropout(hidden)
        return embedded

    def _run(
        self, numbers: range, hidden: Tensor, context: LayerContext, kept: Sequence[KVCache] | None = None
    ) -> Tensor:
        every = self.gradient_checkpointing_every if self.training and kept is None else 0
        for number in numbers:
            layer = self.layers.get_submodule(str(number))
            if every and number % every == 0:
                hidden = checkpoint(layer, hidden, context, use_reentrant=False)
            else:
                hidden = layer(hidden, context, kept[number] if kept else None)
        return hidden

    def _context(self, position_ids: Tensor, *, is_packed: bool | None, keeps: bool) -> LayerContext:
        # other implementations need not support fewer queries than keys
        attention = SdpaAttention() if keeps else self.attention
        documents = attention.separate(position_ids, is_packed=False if keeps else is_packed)
        turned = None
        if self._shape.positions.kind != "learned":
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
        if (pipeline := self.model.pipeline) is not None:
            empty = hidden.new_empty(*hidden.shape[:2], self.config.shape.vocabulary_size)
            return Logits(pipeline.from_last(self.lm_head(hidden).to(empty.dtype) if pipeline.is_last else empty), kept)
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
        return next(self.parameters()).device

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

    def divide_rows(self, context: ContextParallelism) -> None:
        """Let ``context`` divide the tokens of each row among ranks from now on, except while generating."""
        self.model.attention = ContextAttention(context)

    def keep_stages(self, pipeline: PipelineParallelism) -> None:
        """Drop all but the stages of this rank in ``pipeline``; the tensors that stay keep their names."""
        self.model.keep_stages(pipeline)
        if not pipeline.is_last:
            self.register_module("lm_head", None)

    def to_huggingface(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this network's ``tensors`` in the names and shapes of the Hugging Face model that ``config`` names."""
        return to_huggingface(self.config.model_type, tensors)

    def from_huggingface(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``tensors`` of the Hugging Face model that ``config`` names in this network's names and shapes."""
        ours = from_huggingface(self.config.model_type, tensors)
        if self.config.tie_word_embeddings:
            ours.pop("lm_head.weight", None)  # some files contain the tied matrix twice
        return ours
