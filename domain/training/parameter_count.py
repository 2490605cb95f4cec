"""A lower bound on the number of a decoder's parameters, from its configuration alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.domain.training.memory_estimate import LayerShape, ModelShape
from holdfast.domain.training.memory_fit import SizedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

_GATED = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "olmo", "olmo2", "granite", "phi3"})
_FROM_HEADS = frozenset({"llama", "mistral", "qwen2", "olmo", "olmo2", "granite", "phi3", "decoder"})
_SMALLEST_VOCABULARY = 256
_OF_LAYER_NORM = 2  # tensors that a norm of GPT-2 leaves


def fewest_parameters(config: Mapping[str, Any]) -> SizedModel | None:
    """Return the model that ``config`` describes with the keys of Hugging Face, with no more parameters than it has.

    Norms, biases and sizes that only the tokenizer determines are left out. None for an unknown ``model_type``, and for
    fields that are missing or not whole numbers; ``decoder`` is this program's model.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return None
    if kind == "gpt2":
        sizes = _gpt2(config)
    elif kind in _GATED or kind == "decoder":
        sizes = _llama_like(config, kind)
    else:
        return None
    if sizes is None:
        return None
    widths, layers = sizes
    vocabulary = _whole(config.get("vocab_size")) or 0
    number = layers * _matrices(widths) + vocabulary * widths.hidden
    shape = ModelShape(number, layers, widths, max(vocabulary, _SMALLEST_VOCABULARY), is_tied=True)
    return SizedModel(number, shape)


def counted_shape(shape: ModelShape, num_parameters: int, vocabulary_size: int) -> ModelShape:
    """Return ``shape`` with its real number of parameters, and with a vocabulary of ``vocabulary_size`` or more.

    If the parameters beside the layers make two matrices of the vocabulary, the output matrix is not the embedding.
    """
    vocabulary = max(shape.vocabulary_size, vocabulary_size)
    outside = num_parameters - shape.num_layers * _matrices(shape.layer)
    is_tied = shape.layer.norm_tensors == _OF_LAYER_NORM or outside < 2 * vocabulary * shape.layer.hidden
    return replace(shape, num_parameters=num_parameters, vocabulary_size=vocabulary, is_tied=is_tied)


def with_adapters(shape: ModelShape, rank: int) -> ModelShape | None:
    """Return ``shape`` with adapters of ``rank`` beside all linear layers but the head; None for GPT-2's layers.

    An adapter has ``rank`` rows as wide as the inputs and as many as wide as the outputs of its linear layer.
    """
    widths = shape.layer
    if widths.norm_tensors == _OF_LAYER_NORM:
        return None
    of_mlp = (3 if widths.mlp_tensors > 2 else 2) * (widths.hidden + widths.mlp)
    of_attention = 2 * (widths.hidden + widths.attention) + 2 * (widths.hidden + widths.shared)
    return replace(shape, adapter_parameters=shape.num_layers * rank * (of_attention + of_mlp))


def _matrices(widths: LayerShape) -> int:
    """Return the number of parameters in the matrices of a layer."""
    of_mlp = (3 if widths.mlp_tensors > 2 else 2) * widths.hidden * widths.mlp
    return 2 * widths.hidden * (widths.attention + widths.shared) + of_mlp


def _llama_like(config: Mapping[str, Any], kind: str) -> tuple[LayerShape, int] | None:
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    hidden, mlp, layers, heads = (_whole(config.get(name)) for name in names)
    if hidden is None or mlp is None or layers is None or heads is None:
        return None
    head = _whole(config.get("head_dim"))
    if head is None:
        head = hidden // heads if kind in _FROM_HEADS else 0  # a family may have a different default
    shared = _whole(config.get("num_key_value_heads")) or 1
    tensors = 4 if config.get("gated", True) else 2
    return LayerShape(hidden, mlp, heads * head, min(shared, heads) * head, mlp_tensors=tensors), layers


def _gpt2(config: Mapping[str, Any]) -> tuple[LayerShape, int] | None:
    hidden, layers = _whole(config.get("n_embd")), _whole(config.get("n_layer"))
    if hidden is None or layers is None:
        return None
    mlp = _whole(config.get("n_inner")) or 4 * hidden
    return LayerShape(hidden, mlp, hidden, hidden, mlp_tensors=2, norm_tensors=2), layers


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
