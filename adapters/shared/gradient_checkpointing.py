"""Memory for time: which layers throw their activations away and compute them again in the backward."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from domain.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import nn

_OWN = "gradient_checkpointing_every"


def checkpoint_layers(network: nn.Module, policy: str) -> None:
    """Let the layers of ``network`` that ``policy`` names keep their input only and run again in the backward.

    ``policy`` is none, full (all layers) or every:N (the first layer and each Nth after it). Random states are put
    back for the second run, so dropout repeats itself and loss and gradients are those of none. A network of ours is
    told by its attribute ``gradient_checkpointing_every`` (0 means none), one of Hugging Face layer by layer.
    Raises ``ConfigurationError`` for another policy, or if the network has no layers that can do so.
    """
    every = _every(policy)
    if hasattr(network, _OWN):
        setattr(network, _OWN, every)
        return
    layers = [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]
    if every and not layers:
        msg = f"{type(network).__name__} has no layers that can be checkpointed: set model.gradient_checkpointing=none"
        raise ConfigurationError(msg)
    for number, layer in enumerate(layers):
        layer.gradient_checkpointing = every > 0 and number % every == 0
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)  # noqa: SLF001  transformers' own enabler knows all layers or, before 5.20, none else


def _every(policy: str) -> int:
    kind, _, number = policy.partition(":")
    if policy in ("none", "full"):
        return int(policy == "full")
    if kind == "every" and number.isdecimal() and int(number) > 0:
        return int(number)
    msg = f"model.gradient_checkpointing is {policy}: it must be none, full or every:N, such as every:2"
    raise ConfigurationError(msg)
