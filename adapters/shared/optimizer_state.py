"""A torch optimizer's state as files, by parameter name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch

from adapters.shared.state_parts import TensorsPart, TextPart, read_tensors
from domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor
    from torch.optim import AdamW, Optimizer

    from ports.state_store import StatePart

OPTIMIZER_FILE = "optimizer.safetensors"
OPTIMIZER_DESCRIPTION = "optimizer.json"


def allocate_adamw(optimizer: AdamW) -> None:
    """Create the state that AdamW would create in its first step.

    A shortage of memory then shows before training, and not in mid-step, where some parameters have moved already.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device if group["fused"] else "cpu"),
                "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            }


def capture_optimizer(optimizer: Optimizer, names: Mapping[Tensor, str]) -> Sequence[StatePart]:
    """Return the state by value: tensors as ``<key>/<parameter name>`` and, for people, the groups as JSON."""
    named = _named(optimizer, names).items()
    state = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in named}
    groups = [
        {key: value for key, value in group.items() if key not in ("params", "lr")}
        | {"params": [names[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    description = json.dumps({"groups": groups}, indent=1, sort_keys=True)
    return TensorsPart(OPTIMIZER_FILE, state), TextPart(OPTIMIZER_DESCRIPTION, description)


@torch.no_grad()
def restore_optimizer(optimizer: Optimizer, names: Mapping[Tensor, str], folder: Path) -> None:
    """Copy what ``capture_optimizer`` wrote into the state, which is allocated; ``StateError`` if it does not fit."""
    own, saved = _named(optimizer, names), read_tensors(folder / OPTIMIZER_FILE)
    if differing := sorted(own.keys() ^ saved.keys()):
        where = "model" if differing[0] in own else "checkpoint"
        msg = f"the checkpoint's optimizer is of other parameters: only the {where} has {differing[0]}"
        raise StateError(msg)
    for name, tensor in own.items():
        if tensor.shape != saved[name].shape:
            msg = f"{name} is {tuple(saved[name].shape)} in the checkpoint's optimizer and {tuple(tensor.shape)} here"
            raise StateError(msg)
    for name, tensor in own.items():
        tensor.copy_(saved[name])


def _named(optimizer: Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    return {
        f"{key}/{names[parameter]}": value
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
    }
