"""The layers of a network, the number of its parameters, and the ties between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn
from transformers.pytorch_utils import Conv1D

if TYPE_CHECKING:
    from collections.abc import Iterable


def layers_of(network: nn.Module) -> list[nn.Module]:
    """Return the layers of ``network``: the modules of its ``ModuleList`` with the most parameters, or none."""
    stacks: list[nn.Module] = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    return list(max(stacks, key=num_parameters, default=nn.ModuleList()).children())


def num_parameters(module: nn.Module) -> int:
    """Return the number of elements in the parameters of ``module``, each shared one counted once."""
    return sum(parameter.numel() for parameter in module.parameters())


def untie(network: Any, names: Iterable[str]) -> None:
    """Give each weight of ``names`` that is tied to another one a tensor of its own, and say so in the configuration.

    Runs of earlier versions have checkpoints of weights that transformers did not tie, whose configuration ties them.
    """
    tensors, first = network.state_dict(keep_vars=True), dict[int, str]()
    for name, tensor in tensors.items():
        first.setdefault(id(tensor), name)
    for name in names:
        if name in tensors and first[id(tensors[name])] != name:
            module, _, leaf = name.rpartition(".")
            setattr(network.get_submodule(module), leaf, nn.Parameter(tensors[name].detach().clone()))
            network.config.tie_word_embeddings = network.config.get_text_config().tie_word_embeddings = False


def linear_layers(network: Any) -> dict[str, nn.Module]:
    """Return the linear layers, without the head and those whose weights Mamba's kernels read directly."""
    head, modules = network.get_output_embeddings(), dict(network.named_modules())
    return {
        name: module
        for name, module in modules.items()
        if isinstance(module, (nn.Linear, Conv1D))
        and module is not head
        and not (name.endswith(".out_proj") and hasattr(modules[name.rpartition(".")[0]], "conv1d"))
    }
