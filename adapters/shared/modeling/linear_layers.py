"""The linear layers of a network that adapters and pruning change."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D


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
