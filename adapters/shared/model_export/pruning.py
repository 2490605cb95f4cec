"""Sets the weights of least magnitude in linear layers to zero, by the functions of torch."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, final

import torch
from torch import nn
from torch.nn.utils import prune
from transformers.pytorch_utils import Conv1D

from holdfast.adapters.shared.modeling.network_layers import linear_layers
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from torch import Tensor

    from holdfast.domain.training.export_format import Sparsity


@final
@dataclass(frozen=True, slots=True)
class PrunedShare:
    """The number of weights in the linear layers of a network without its head, and of those that are zero."""

    num_weights: int
    num_zeros: int


def prune_linear_layers(network: Any, sparsity: Sparsity) -> None:
    """Set weights of the linear layers of ``network``, except its head, to zero, in each layer the same share.

    Raises ``ConfigurationError`` if there is no such layer, or none of the wanted groups fits into a layer.
    """
    layers: dict[str, Any] = linear_layers(network)
    if not layers:
        msg = f"{type(network).__name__} has no linear layers to prune: leave out --sparsity"
        raise ConfigurationError(msg)
    for name, layer in layers.items():
        # of a Conv1D the rows are the inputs
        matrix = layer.weight.detach().T if isinstance(layer, Conv1D) else layer.weight.detach()
        if sparsity.group is not None and matrix.shape[1] % sparsity.group:
            msg = (
                f"the layer {name} has {matrix.shape[1]} inputs, no multiple of {sparsity.group}: choose a share such "
                "as --sparsity 0.5"
            )
            raise ConfigurationError(msg)
        matrix.copy_(_pruned(matrix, sparsity))  # a view: it changes the layer


def pruned_share(network: Any) -> PrunedShare:
    """Return the numbers of weights and zeros in the linear layers of ``network``, quantized or not."""
    num_weights = num_zeros = 0
    layers: dict[str, Any] = linear_layers(network)
    for layer in layers.values():
        weight = layer.weight.detach()
        plain = weight.dequantize() if hasattr(weight, "dequantize") and type(weight) is not torch.Tensor else weight
        num_weights += plain.numel()
        num_zeros += int((plain == 0).sum())
    return PrunedShare(num_weights, num_zeros)


def _pruned(matrix: Tensor, sparsity: Sparsity) -> Tensor:
    """Return a copy of ``matrix``, (outputs, inputs), with zeros."""
    holder = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False, device="meta")
    holder.weight = nn.Parameter(matrix.clone(memory_format=torch.contiguous_format), requires_grad=False)
    if sparsity.group is None:
        prune.l1_unstructured(holder, "weight", sparsity.share)  # type: ignore[no-untyped-call]
        prune.remove(holder, "weight")  # type: ignore[no-untyped-call]
        return holder.weight.detach()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)  # torch moves parts of torch.ao to torchao
        sparsifier = import_module("torch.ao.pruning").WeightNormSparsifier(
            sparsity_level=1.0,
            sparse_block_shape=(1, sparsity.group),
            zeros_per_block=round(sparsity.share * sparsity.group),
        )
        parent = nn.Sequential(holder)
        sparsifier.prepare(parent, [{"tensor_fqn": "0.weight"}])
        sparsifier.step()
        sparsifier.squash_mask()
    return holder.weight.detach()
