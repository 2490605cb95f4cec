"""Parameter groups of a network by the role of each trainable parameter."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.tensor import DTensor

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh


class ParameterRole(Enum):
    """The role of a parameter in its network."""

    EMBEDDING = "embedding"  # looked up by token or position; includes a tied head
    HEAD = "head"  # from the last hidden state to the logits
    MATRIX = "matrix"  # two dimensions, between hidden states
    STACK = "stack"  # more dimensions: convolutions, experts in one tensor
    VECTOR = "vector"  # norms, biases, scalars


def parameter_groups(
    network: nn.Module,
    *,
    weight_decay: float,
    decay_embeddings: bool,
    options_of: Callable[[ParameterRole], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return the parameter groups for a torch optimizer, without frozen parameters.

    Vectors have no weight decay, and embeddings have it only with ``decay_embeddings``. ``options_of`` returns the
    other options of a role. Raises ``ConfigurationError`` if all parameters are frozen.
    """
    groups: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}
    for parameter, role in _roles(network):
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


def _roles(network: nn.Module) -> Iterator[tuple[Tensor, ParameterRole]]:
    embeddings = {module.weight for module in network.modules() if isinstance(module, nn.Embedding)}
    head = getattr(network, "get_output_embeddings", lambda: None)()
    for parameter in network.parameters():
        if not parameter.requires_grad:
            continue
        if parameter in embeddings:
            yield parameter, ParameterRole.EMBEDDING
        elif head is not None and parameter is getattr(head, "weight", None):
            yield parameter, ParameterRole.HEAD
        elif parameter.dim() < 2:
            yield parameter, ParameterRole.VECTOR
        else:
            yield parameter, ParameterRole.MATRIX if parameter.dim() == 2 else ParameterRole.STACK
