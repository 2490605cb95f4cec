"""A lower bound on the number of a decoder's parameters, from its configuration alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.domain.training.memory_estimate import LayerShape, ModelShape
from holdfast.domain.training.memory_fit import SizedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

_GATED = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "olmo", "olmo2", "granite", "phi3"})
_FROM_HEADS = frozenset({"llama", "mistral", "qwen2", "olmo", "olmo2", "granite", "phi3", "decoder"})
_SMALLEST_VOCABULARY = 256


def fewest_parameters(config: Mapping[str, Any]) -> SizedModel | None:
    """Return the model that ``config`` describes with the keys of Hugging Face, with no more parameters than it has.

    Norms, biases and sizes that only the tokenizer determines are left out. None for an unknown ``model_type``, and for
    fields that are missing or not whole numbers; ``decoder`` is this program's model.
    """
    kind = config.get("model_type")
    if kind == "gpt2":
        found = _gpt2(config)
    elif kind in _GATED or kind == "decoder":
        found = _llama_like(config, str(kind))
    else:
        return None
    if found is None:
        return None
    widths, layers = found
    of_layer = 2 * widths.hidden * (widths.attention + widths.shared)
    of_layer += (3 if widths.mlp_tensors > 2 else 2) * widths.hidden * widths.mlp
    vocabulary = _whole(config.get("vocab_size")) or 0
    number = layers * of_layer + vocabulary * widths.hidden
    shape = ModelShape(number, layers, widths, max(vocabulary, _SMALLEST_VOCABULARY), is_tied=True)
    return SizedModel(number, shape)


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
