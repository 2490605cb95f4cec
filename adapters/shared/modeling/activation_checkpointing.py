"""Activation checkpointing: layers that drop their activations and recompute them in the backward."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from holdfast.adapters.shared.modeling.network_layers import num_parameters
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import shown_size
from holdfast.domain.training.memory_estimate import LayerShape, ModelShape
from holdfast.domain.training.memory_fit import CheckpointBudget, choose_checkpointing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel

_OWN = "gradient_checkpointing_every"


def checkpoint_model(model: CausalLanguageModel, policy: str | CheckpointBudget, *, attention: str) -> None:
    """Recompute layers of ``model`` in the backward: those of ``checkpoint_layers``, or as few as a budget requires.

    The result for a budget is added to ``model.notes``. ``attention`` is the implementation that the model uses. Raises
    ``ConfigurationError`` if the model's memory cannot be predicted or exceeds the budget.
    """
    if isinstance(policy, CheckpointBudget):
        policy, note = _within(policy, model.network, attention)
        model.notes += (note,)
    checkpoint_layers(model.network, policy)


def checkpoint_layers(network: Any, policy: str) -> None:
    """Make the layers of ``network`` chosen by ``policy`` store only their input and be recomputed in the backward.

    ``policy`` is none, full (all layers) or every:N (the first layer and each Nth after it). Random states are restored
    for the second run, so dropout is the same and loss and gradients are those of none. A network of ours has the
    attribute ``gradient_checkpointing_every`` (0 means none) set, one of Hugging Face each layer. Raises
    ``ConfigurationError`` for another policy, or a network without layers that support it.
    """
    every = _every(policy)
    if hasattr(network, _OWN):
        setattr(network, _OWN, every)
        return
    for number, layer in enumerate(_layers(network) if every else _found(network)):
        layer.gradient_checkpointing = every > 0 and number % every == 0
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)  # noqa: SLF001  transformers' own enabler knows all layers or, before 5.20, none else


def shape_of(network: Any) -> ModelShape:
    """Return the sizes of ``network``, ours or of Hugging Face.

    If some parameters are frozen, the others count as adapters. Raises ``ConfigurationError`` if its layers are not
    attention and one MLP each, all equal, or their widths are unknown.
    """
    layers = list(network.model.layers) if hasattr(network, _OWN) else _layers(network)
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
    number = num_parameters(network)
    trained = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    adapters = trained if trained < number else 0
    return ModelShape(
        number - adapters, len(layers), widths, config.vocab_size, is_tied=is_tied, adapter_parameters=adapters
    )


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


def _within(budget: CheckpointBudget, network: Any, attention: str) -> tuple[str, str]:
    if attention == "eager":
        msg = "the memory of eager attention cannot be estimated: set model.gradient_checkpointing to full or every:N"
        raise ConfigurationError(msg)
    shape = shape_of(network)
    training = replace(budget.training, is_masked=budget.training.is_masked and attention == "sdpa")
    chosen = choose_checkpointing(shape, replace(budget, training=training))
    again = -(-shape.num_layers // chosen.every) if chosen.every else 0
    taken, kept, most = (shown_size(size) for size in (chosen.activations, chosen.all_kept, budget.max_bytes))
    note = (
        f"gradient checkpointing is {chosen.policy}, {again} of {shape.num_layers} layers: activations take {taken} of "
        f"{most} by the formula of docs/memory.md, {kept} with none"
    )
    return chosen.policy, note


def _layers(network: Any) -> list[Any]:
    layers = _found(network)
    if not layers:
        msg = f"{type(network).__name__} has no layers that can be checkpointed: set model.gradient_checkpointing=none"
        raise ConfigurationError(msg)
    return layers


def _found(network: Any) -> list[Any]:
    return [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]


def _every(policy: str) -> int:
    kind, _, number = policy.partition(":")
    if policy in ("none", "full"):
        return int(policy == "full")
    if kind == "every" and number.isdecimal() and int(number) > 0:
        return int(number)
    msg = f"model.gradient_checkpointing is {policy}: it must be none, full or every:N, such as every:2"
    raise ConfigurationError(msg)
