"""Activation checkpointing: layers that drop their activations and recompute them in the backward."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from holdfast.adapters.shared.modeling.model_shape import shape_of_network
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.sizes import shown_size
from holdfast.domain.training.checkpoint_budget import CheckpointBudget, choose_checkpointing

if TYPE_CHECKING:
    from holdfast.adapters.shared.modeling.causal_language_model import CausalLanguageModel
    from holdfast.domain.training.memory_estimate import ModelShape

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
    """Return the sizes of ``network``, ours or of Hugging Face; raises ``ConfigurationError`` if they are unknown."""
    layers = list(network.model.layers) if hasattr(network, _OWN) else _layers(network)
    return shape_of_network(network, layers)


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
