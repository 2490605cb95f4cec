"""The layers of a network and the number of its parameters."""

from __future__ import annotations

from torch import nn


def layers_of(network: nn.Module) -> list[nn.Module]:
    """Return the layers of ``network``: the modules of its ``ModuleList`` with the most parameters, or none."""
    stacks: list[nn.Module] = [module for module in network.modules() if isinstance(module, nn.ModuleList)]
    return list(max(stacks, key=num_parameters, default=nn.ModuleList()).children())


def num_parameters(module: nn.Module) -> int:
    """Return the number of elements in the parameters of ``module``, each shared one counted once."""
    return sum(parameter.numel() for parameter in module.parameters())
