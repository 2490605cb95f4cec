"""The sizes of a network that the memory formula needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from holdfast.adapters.shared.modeling.network_layers import num_parameters
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.memory_estimate import LayerShape, ModelShape

if TYPE_CHECKING:
    from collections.abc import Sequence


def shape_of_network(network: Any, layers: Sequence[nn.Module]) -> ModelShape:
    """Return the shape of ``network``, of Hugging Face or ours, whose layers are ``layers``.

    Raises ``ConfigurationError`` if they are not attention and one MLP each, all equal, or their widths are unknown.
    """
    config = network.config
    own = getattr(config, "shape", None)
    hidden, attention, shared, mlp = _widths_of_ours(own) if own is not None else _widths(config)
    are_alike = len({num_parameters(layer) for layer in layers}) == 1
    if None in (hidden, attention, shared, mlp) or not are_alike or _has_experts(layers[0]):
        name = type(network).__name__
        msg = f"the memory for activations of {name} cannot be estimated: set model.gradient_checkpointing to every:N"
        raise ConfigurationError(msg)
    modules = list(layers[0].modules())
    gates = (getattr(module, name, None) for module in modules for name in ("gate_proj", "gate_up_proj"))
    widths = LayerShape(
        hidden=hidden,
        mlp=mlp,
        attention=attention,
        shared=shared,
        mlp_tensors=(4 if any(gate is not None for gate in gates) else 2) + (3 if _is_composed(modules) else 0),
        norm_tensors=2 if any(isinstance(module, nn.LayerNorm) for module in modules) else 3,
    )
    is_tied = bool(getattr(config, "tie_word_embeddings", False))
    return ModelShape(num_parameters(network), len(layers), widths, config.vocab_size, is_tied=is_tied)


def _widths_of_ours(shape: Any) -> tuple[Any, ...]:
    heads = shape.attention
    sizes = heads.num_heads * heads.head_size, heads.num_key_value_heads * heads.head_size
    return shape.hidden_size, *sizes, shape.mlp.width


def _widths(config: Any) -> tuple[Any, ...]:
    hidden, heads = getattr(config, "hidden_size", None), getattr(config, "num_attention_heads", None)
    if not (hidden and heads):
        return None, None, None, None
    head = getattr(config, "head_dim", None) or hidden // heads
    shared = getattr(config, "num_key_value_heads", None) or heads
    mlp = getattr(config, "intermediate_size", None)
    if mlp is None and hasattr(config, "n_inner"):  # of GPT-2, which means this by None
        mlp = config.n_inner or 4 * hidden
    return hidden, heads * head, shared * head, mlp


def _is_composed(modules: Sequence[nn.Module]) -> bool:
    """Return whether the activation consists of several operations, each storing an output, as GPT-2's does."""
    kinds = {type(module).__name__ for module in modules if type(module).__module__ == "transformers.activations"}
    return bool(kinds - {"GELUActivation", "GELUTanh", "PytorchGELUTanh", "SiLUActivation"})


def _has_experts(layer: nn.Module) -> bool:
    return any("experts" in name for name, _ in layer.named_modules())
