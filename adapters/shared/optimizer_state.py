"""A torch optimizer's state as files, by parameter name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from adapters.shared.sharding import assign, host_copies, is_first_rank
from adapters.shared.state_parts import TensorsPart, TextPart, read_tensors
from domain.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from torch import Tensor
    from torch.optim import Optimizer

    from ports.state_store import StatePart

OPTIMIZER_FILE = "optimizer.safetensors"
OPTIMIZER_DESCRIPTION = "optimizer.json"


def capture_optimizer(optimizer: Optimizer, names: Mapping[Tensor, str]) -> Sequence[StatePart]:
    """Return the state by value, on the first rank.

    Tensors are named ``<key>/<parameter name>``; for people the groups come as JSON.
    """
    state = host_copies(_named(optimizer, names))
    if not is_first_rank():
        return ()
    return TensorsPart(OPTIMIZER_FILE, state), describe_groups(optimizer.param_groups, names)


def describe_groups(groups: Sequence[Mapping[str, Any]], names: Mapping[Tensor, str]) -> StatePart:
    """Return the groups of parameters as JSON, by name and without the learning rate, which follows from progress."""
    described = [
        {key: value for key, value in group.items() if key not in ("params", "lr")}
        | {"params": [names[parameter] for parameter in group["params"]]}
        for group in groups
    ]
    return TextPart(OPTIMIZER_DESCRIPTION, json.dumps({"groups": described}, indent=1, sort_keys=True))


@torch.no_grad()
def restore_optimizer(optimizer: Optimizer, names: Mapping[Tensor, str], folder: Path) -> None:
    """Copy what ``capture_optimizer`` wrote into the state, which is allocated; ``StateError`` if it does not fit."""
    own, saved = _named(optimizer, names), read_tensors(folder / OPTIMIZER_FILE)
    refuse_other_state({name: tensor.shape for name, tensor in own.items()}, saved)
    for name, tensor in own.items():
        assign(tensor, saved[name])


def refuse_other_state(shapes: Mapping[str, torch.Size], saved: Mapping[str, Tensor]) -> None:
    """Raise ``StateError`` if what was ``saved`` is not of these names and shapes."""
    if differing := sorted(shapes.keys() ^ saved.keys()):
        where = "model" if differing[0] in shapes else "checkpoint"
        msg = f"the checkpoint's optimizer is of other parameters: only the {where} has {differing[0]}"
        raise StateError(msg)
    for name, shape in shapes.items():
        if shape != saved[name].shape:
            msg = f"{name} is {tuple(saved[name].shape)} in the checkpoint's optimizer and {tuple(shape)} here"
            raise StateError(msg)


def _named(optimizer: Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    return {
        f"{key}/{names[parameter]}": value
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
    }
