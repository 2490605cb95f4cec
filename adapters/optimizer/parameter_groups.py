"""Parameter groups of a network by the role of each trainable parameter."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.tensor import DTensor

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh

NEWEST_RULE = 2
"""The version of the rule that gives parameters their roles; version 1 looked at the number of dimensions alone."""

# What Trainer of transformers leaves without weight decay, by the name of the parameter in lower case.
_NORMS_AND_BIASES = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
_STATE_SPACE = ("A_log", "D")  # of Mamba, whose authors leave them without decay


class ParameterRole(Enum):
    """The role of a parameter in its network."""

    EMBEDDING = "embedding"  # looked up by token or position; includes a tied head
    HEAD = "head"  # from the last hidden state to the logits
    MATRIX = "matrix"  # of a linear layer between hidden states
    STACK = "stack"  # convolutions, experts in one tensor, and all else of two or more dimensions
    VECTOR = "vector"  # norms, biases, scalars, state-space parameters


def parameter_groups(
    network: nn.Module,
    *,
    weight_decay: float,
    decay_embeddings: bool,
    options_of: Callable[[ParameterRole], dict[str, Any]],
    rule: int = NEWEST_RULE,
) -> list[dict[str, Any]]:
    """Return the parameter groups for a torch optimizer, without frozen parameters.

    Vectors have no weight decay, and embeddings have it only with ``decay_embeddings``. ``options_of`` returns the
    other options of a role; ``rule`` is the version of the rule for roles. Raises ``ConfigurationError`` if all
    parameters are frozen.
    """
    groups: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}
    for parameter, role in _roles(network, rule):
        decays = role is not ParameterRole.VECTOR and (decay_embeddings or role is not ParameterRole.EMBEDDING)
        options = options_of(role) | {"weight_decay": weight_decay if decays else 0.0}
        # torch steps all tensors of a group at once, which must then be spread over the same ranks
        key = (*sorted(options.items()), ("mesh", mesh_of(parameter)))
        group = groups.setdefault(key, {"params": [], **options})
        group["params"].append(parameter)
    if not groups:
        msg = "every parameter of the model is frozen, so there is nothing to train: choose another model or model.lora"
        raise ConfigurationError(msg)
    return list(groups.values())


def mesh_of(tensor: Tensor) -> DeviceMesh | None:
    """Return the mesh over which ``tensor`` is spread; None if each rank has all of it."""
    return tensor.device_mesh if isinstance(tensor, DTensor) else None


def by_mesh(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Return ``tensors`` in lists, each of tensors with the same mesh; an empty list if there are none."""
    lists: dict[DeviceMesh | None, list[Tensor]] = {}
    for tensor in tensors:
        lists.setdefault(mesh_of(tensor), []).append(tensor)
    return list(lists.values()) or [[]]


def _roles(network: nn.Module, rule: int) -> Iterator[tuple[Tensor, ParameterRole]]:
    embeddings = {module.weight for module in network.modules() if isinstance(module, nn.Embedding)}
    head = getattr(network, "get_output_embeddings", lambda: None)()
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        if rule > 1 and _is_spared(network, name, parameter):
            yield parameter, ParameterRole.VECTOR
        elif parameter in embeddings:
            yield parameter, ParameterRole.EMBEDDING
        elif head is not None and parameter is getattr(head, "weight", None):
            yield parameter, ParameterRole.HEAD
        elif parameter.dim() < 2:
            yield parameter, ParameterRole.VECTOR
        else:
            is_matrix = parameter.dim() == 2 and (rule == 1 or name.endswith(".weight"))
            yield parameter, ParameterRole.MATRIX if is_matrix else ParameterRole.STACK


def _is_spared(network: nn.Module, name: str, parameter: Tensor) -> bool:
    """Return whether a parameter is a norm, a bias, a scale of channels or of the state space, whatever its shape.

    The name of the base model, which may be that of an architecture with special norms, says nothing.
    """
    place, _, own = name.rpartition(".")
    owner = network.get_submodule(place)
    below = name.removeprefix(f"{getattr(network, 'base_model_prefix', '')}.")
    return (
        bool(_NORMS_AND_BIASES.search(below.lower()))
        or isinstance(owner, nn.LayerNorm)
        or type(owner).__name__.endswith("Norm")
        or own in _STATE_SPACE
        or (own != "weight" and sum(size > 1 for size in parameter.shape) < 2)
        or getattr(parameter, "_no_weight_decay", False)  # as code that a checkpoint brings marks its own
    )
