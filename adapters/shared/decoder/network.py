"""The decoder network, with the interface of Hugging Face's causal models."""

from __future__ import annotations

import math
import re
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from typing_extensions import override

from holdfast.adapters.shared.decoder.decoder_attention import Attention, SdpaAttention
from holdfast.adapters.shared.decoder.layers import (
    ContextAttention,
    DecoderLayer,
    KVCache,
    LayerContext,
    make_norm,
    rotation,
)
from holdfast.adapters.shared.modeling.deferred_weights import InitialWeight
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from transformers import GenerationConfig

    from holdfast.adapters.shared.decoder.decoder_config import DecoderConfig
    from holdfast.adapters.shared.decoder.decoder_shape import DecoderShape, Dropout
    from holdfast.adapters.shared.modeling.tensor_parallel import ContextParallelism, PipelineParallelism


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


class CachedForward(Protocol):
    """A network whose forward accepts the keys and values of earlier tokens and returns them with the new ones."""

    def __call__(self, input_ids: Tensor, position_ids: Tensor, *, use_cache: bool, past_key_values: Any) -> Any:
        """Return logits (rows, length, vocabulary) and the ``past_key_values`` of the next call."""


class Streamer(Protocol):
    """A streamer in the sense of transformers."""

    def put(self, tokens: Tensor) -> None:
        """Receive the prompt in the first call, later new tokens, int64 (rows, length)."""


@torch.no_grad()
def generate(
    network: CachedForward,
    input_ids: Tensor,
    *,
    max_new_tokens: int,
    eos_token_id: int,
    pad_token_id: int,
    do_sample: bool = False,
    attention_mask: Tensor | None = None,
    streamer: Streamer | None = None,
    **sampling: float,
) -> Tensor:
    """Return ``input_ids``, int64 (rows, length), with new tokens until each row ends or has ``max_new_tokens``.

    A row that ended is filled with ``pad_token_id``. Draws are those of transformers for the same logits and state of
    torch's generator; ``sampling`` are the options of ``draw``. ``streamer`` gets the prompt, and new tokens as
    they come. Raises ``ConfigurationError`` for rows with padding.
    """
    if attention_mask is not None and not bool(attention_mask.all()):
        msg = "prompts of different lengths cannot be continued together: generate for one at a time"
        raise ConfigurationError(msg)
    ids, new, kept = input_ids, input_ids, None
    if streamer is not None:
        streamer.put(ids)
    has_ended = torch.zeros(len(ids), dtype=torch.bool, device=ids.device)
    for _ in range(max_new_tokens):
        positions = torch.arange(ids.shape[1] - new.shape[1], ids.shape[1], device=ids.device).expand_as(new)
        logits, kept = network(new, positions, use_cache=True, past_key_values=kept)
        last = logits[:, -1].float()
        chosen = draw(last, **sampling) if do_sample else last.argmax(dim=-1)
        new = chosen.masked_fill(has_ended, pad_token_id)[:, None]
        ids = torch.cat((ids, new), dim=1)
        if streamer is not None:
            streamer.put(new.cpu())
        has_ended |= chosen == eos_token_id
        if bool(has_ended.all()):
            break
    return ids


def draw(logits: Tensor, *, temperature: float = 1.0, top_k: float = 0, top_p: float = 1.0) -> Tensor:
    """Return one id per row, int64 (rows,), drawn by ``logits``, fp32 (rows, vocabulary).

    Only the ``top_k`` likeliest (0: all) are eligible, and of these the fewest whose probabilities reach ``top_p``
    (Holtzman et al., 2020).
    """
    logits = logits / temperature
    if top_k:
        least = logits.topk(min(int(top_k), logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1:
        rising, places = logits.sort(dim=-1)
        is_surplus = rising.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
        is_surplus[:, -1] = False
        logits = logits.masked_fill(is_surplus.scatter(1, places, is_surplus), -torch.inf)
    return torch.multinomial(logits.softmax(dim=-1), num_samples=1).squeeze(1)


_NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "starcoder2": {"mlp.up_proj.": "mlp.c_fc.", "mlp.down_proj.": "mlp.c_proj."},
        "gpt2": {
            "model.embed_tokens.": "transformer.wte.",
            "model.embed_positions.": "transformer.wpe.",
            "model.layers.": "transformer.h.",
            "model.norm.": "transformer.ln_f.",
            ".input_layernorm.": ".ln_1.",
            ".self_attn.o_proj.": ".attn.c_proj.",
            ".post_attention_layernorm.": ".ln_2.",
            ".mlp.up_proj.": ".mlp.c_fc.",
            ".mlp.down_proj.": ".mlp.c_proj.",
        },
    }
)
_JOINT = ".attn.c_attn."
_PARTS = tuple(f".self_attn.{part}_proj." for part in "qkv")
_TRANSPOSED = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
_OF_BASE = re.compile(r"(wte|wpe|h|ln_f)\.")
# entries of older files besides weights; each follows from the configuration
_NO_WEIGHTS = re.compile(r"(\.rotary_emb\.inv_freq|\.attn\.(bias|masked_bias))$")


def to_huggingface(model_type: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``tensors``, which have the network's own names, in the names of Hugging Face's ``model_type``.

    Dtypes stay. Shapes stay too, except those of matrices that GPT-2 stores transposed or joined.
    """
    if model_type != "gpt2":
        return {_renamed(name, _NAMES.get(model_type, {})): tensor for name, tensor in tensors.items()}
    theirs: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        renamed = _renamed(name, _NAMES["gpt2"])
        if _PARTS[0] in renamed:
            joint = torch.cat([tensors[name.replace(_PARTS[0], part)] for part in _PARTS])
            theirs[renamed.replace(_PARTS[0], _JOINT)] = joint
        elif not any(part in renamed for part in _PARTS):
            theirs[renamed] = tensor
    return _transposed(theirs)


def from_huggingface(model_type: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``tensors`` of a Hugging Face model of ``model_type`` in the network's own names.

    Dtypes stay. Shapes stay too, except those of matrices that GPT-2 stores transposed or joined. Each tensor is
    converted by itself, so they may be given one by one.
    """
    tensors = {name: tensor for name, tensor in tensors.items() if not _NO_WEIGHTS.search(name)}
    back = {theirs: ours for ours, theirs in _NAMES.get(model_type, {}).items()}
    if model_type != "gpt2":
        return {_renamed(name, back): tensor for name, tensor in tensors.items()}
    # the first published files are those of the base model
    tensors = {f"transformer.{name}" if _OF_BASE.match(name) else name: each for name, each in tensors.items()}
    ours: dict[str, Tensor] = {}
    for name, tensor in _transposed(tensors).items():
        renamed = _renamed(name, back)
        if _JOINT in renamed:
            thirds = zip(_PARTS, tensor.chunk(3), strict=True)
            ours |= {renamed.replace(_JOINT, part): third.contiguous() for part, third in thirds}
        else:
            ours[renamed] = tensor
    return ours


def _renamed(name: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        name = name.replace(old, new)
    return name


def _transposed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.t().contiguous() if _TRANSPOSED.search(name) else tensor for name, tensor in tensors.items()}


_RESIDUAL = ("o_proj", "down_proj")


def initial_weights(
    network: DecoderNetwork, *, seed: int, scheme: str = "auto", deviation: float = 0.02
) -> Sequence[InitialWeight]:
    """Return the initial values of all weights of ``network``, from a random generator of their own.

    ``llama``: matrices and embeddings normal with ``deviation``, biases 0, norms the identity, as transformers draws a
    Llama. ``gpt2``: the same, but matrices at the end of a residual branch are divided by the root of the number of
    branches (Radford et al., 2019, section 2.3; twice the layers, as in Megatron-LM and transformers). ``auto`` is gpt2
    for learned positions, otherwise llama. Raises ``ConfigurationError`` for another scheme.
    """
    if scheme not in ("auto", "llama", "gpt2"):
        msg = f"model.initialisation is {scheme!r}: make it auto, llama or gpt2"
        raise ConfigurationError(msg)
    is_learned = network.config.shape.positions.kind == "learned"
    is_scaled = scheme == "gpt2" or (scheme == "auto" and is_learned)
    branch = deviation / math.sqrt(2 * network.config.num_hidden_layers) if is_scaled else deviation
    generator = torch.Generator().manual_seed(seed % 2**64)
    weights: list[InitialWeight] = []
    for name, module in network.named_modules():
        if module is network.lm_head and network.config.tie_word_embeddings:
            continue
        normal = partial(_draw_normal, generator, branch if name.endswith(_RESIDUAL) else deviation)
        weights += _of_module(name, module, normal)
    return weights


def _of_module(name: str, module: nn.Module, normal: partial[None]) -> Iterator[InitialWeight]:
    is_norm = isinstance(module, (nn.RMSNorm, nn.LayerNorm))
    if not is_norm and not isinstance(module, (nn.Linear, nn.Embedding)):
        return
    for own, parameter in module.named_parameters(recurse=False):
        draw = torch.Tensor.zero_ if own == "bias" else _set_ones if is_norm else normal
        yield InitialWeight(f"{name}.{own}", parameter.numel(), draw)


def _draw_normal(generator: torch.Generator, deviation: float, values: Tensor) -> None:
    values.normal_(std=deviation, generator=generator)


def _set_ones(values: Tensor) -> None:
    values.fill_(1.0)
