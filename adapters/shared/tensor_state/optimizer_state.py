"""A torch optimizer's state as files, by parameter name."""

from __future__ import annotations

import json
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.tensor import DTensor

from holdfast.adapters.shared.network.ranks import is_first_rank, rank, world_size
from holdfast.adapters.shared.tensor_state.consolidation import ShardLayoutPart, rank_file
from holdfast.adapters.shared.tensor_state.file_parts import TextPart, read_whole
from holdfast.adapters.shared.tensor_state.local_shards import assign, host_slices, host_tensors, local_slice, shape_of
from holdfast.adapters.shared.tensor_state.safetensors_file import TensorsPart
from holdfast.adapters.shared.tensor_state.sharded_tensors import ShardLayout, SlicedTensors, TensorFile, slices_part
from holdfast.domain.errors import NonFiniteState, StateError
from holdfast.ports.state_store import open_plainly

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor
    from torch.optim import Optimizer

    from holdfast.adapters.shared.tensor_state.local_shards import Slice
    from holdfast.ports.state_store import JoinedPart, OpenFile, StatePart

OPTIMIZER_FILE = "optimizer.safetensors"
OPTIMIZER_DESCRIPTION = "optimizer.json"
OPTIMIZER_LAYOUT = "optimizer/layout.json"
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def capture_optimizer(
    optimizer: Optimizer,
    names: Mapping[Tensor, str],
    *,
    sharded: bool,
    copy: bool = True,
    is_alone: bool = False,
) -> Sequence[StatePart | JoinedPart]:
    """Return the state, as ``optimizer_parts`` does, and a readable description of the groups as JSON.

    ``names`` are the names of the parameters. Tensors keep their shapes and dtypes. ``is_alone`` is as in
    ``local_slice``.
    """
    state = {name: local_slice(tensor, is_alone=is_alone) for name, tensor in named_state(optimizer, names).items()}
    parts = optimizer_parts(state, sharded=sharded, copy=copy)
    return (*parts, describe_groups(optimizer.param_groups, names)) if is_first_rank() else parts


def optimizer_parts(
    state: Mapping[str, Slice], *, sharded: bool, copy: bool = True
) -> Sequence[StatePart | JoinedPart]:
    """Return ``state``, named ``<key>/<parameter name>``: whole on the first rank, or each rank's slices.

    ``copy`` is that of ``host_slices``.
    """
    if not sharded:
        return (TensorsPart(OPTIMIZER_FILE, host_tensors(state, copy=copy)),) if is_first_rank() else ()
    files = [rank_file("optimizer", each, world_size()) for each in range(world_size())]
    part = slices_part(files[rank()], host_slices(state, copy=copy))
    return (part, ShardLayoutPart(OPTIMIZER_LAYOUT, files)) if is_first_rank() else (part,)


def describe_groups(groups: Sequence[Mapping[str, Any]], names: Mapping[Tensor, str]) -> StatePart:
    """Return the parameter groups as JSON: their options and the names, not the shapes, of their parameters.

    The learning rate is left out, as it follows from progress.
    """
    described = [
        {key: value for key, value in group.items() if key not in ("params", "lr")}
        | {"params": [names[parameter] for parameter in group["params"]]}
        for group in groups
    ]
    return TextPart(OPTIMIZER_DESCRIPTION, json.dumps({"groups": described}, indent=1, sort_keys=True))


@torch.no_grad()
def restore_optimizer(
    optimizer: Optimizer,
    names: Mapping[Tensor, str],
    folder: Path,
    open_file: OpenFile = open_plainly,
    *,
    whole: Mapping[str, torch.Size] | None = None,
) -> None:
    """Copy the files of ``capture_optimizer`` into the allocated state, whose dtypes stay.

    Tensors are read in the order of the file. ``whole``, if given, has the shapes of the state of all ranks, of which
    this one has some tensors. Raises ``StateError`` if names or shapes differ, and ``NonFiniteState``
    if a tensor has NaN or infinity.
    """
    own = named_state(optimizer, names)
    with saved_optimizer(folder, open_file) as saved:
        check_same_shapes(whole or {name: shape_of(tensor) for name, tensor in own.items()}, saved.shapes)
        for name in (name for name in saved.shapes if name in own):
            assign(own[name], partial(saved.read, name))
            check_finite_state(name, own[name])


@contextmanager
def saved_optimizer(folder: Path, open_file: OpenFile) -> Iterator[SlicedTensors]:
    """Yield the state in ``folder``, whole or of any number of ranks; raises ``StateError`` if it cannot be read."""
    with ExitStack() as stack:

        def opened(name: str) -> TensorFile:
            file = stack.enter_context(open_file(folder / name))
            return TensorFile(str(folder / name), file.read, fill=file.fill)

        try:
            layout = folder / OPTIMIZER_LAYOUT
            if layout.exists():
                text = read_whole(layout, open_file)
                yield SlicedTensors(ShardLayout.from_json(text, layout), opened)
            else:
                whole = opened(OPTIMIZER_FILE)
                yield SlicedTensors(ShardLayout.of([whole]), lambda _: whole)
        except OSError as error:
            msg = f"{folder} holds an optimizer that cannot be read: {error}; restore another checkpoint"
            raise StateError(msg) from error


def check_finite_state(name: str, tensor: Tensor) -> None:
    """Raise ``NonFiniteState`` if this rank's part of ``tensor``, of any shape and dtype, has NaN or infinity."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    if local.dtype not in _FLOATS or torch.isfinite(local.sum()) or torch.isfinite(local).all():  # the sum is quick
        return
    msg = f"the optimizer's state {name} holds values that are infinite or not a number: restore another checkpoint"
    raise NonFiniteState(msg)


def check_same_shapes(shapes: Mapping[str, torch.Size], saved: Mapping[str, torch.Size]) -> None:
    """Raise ``StateError`` unless ``saved`` has the names and shapes of ``shapes``."""
    if differing := sorted(shapes.keys() ^ saved.keys()):
        where = "model" if differing[0] in shapes else "checkpoint"
        msg = f"the checkpoint's optimizer belongs to other parameters: only the {where} has {differing[0]}"
        raise StateError(msg)
    for name, shape in shapes.items():
        if shape != saved[name]:
            msg = f"{name} is {tuple(saved[name])} in the checkpoint's optimizer and {tuple(shape)} here"
            raise StateError(msg)


def named_state(optimizer: Optimizer, names: Mapping[Tensor, str]) -> dict[str, Tensor]:
    """Return the tensors of ``optimizer``, named ``<key>/<parameter name>``."""
    return {
        f"{key}/{names[parameter]}": value
        for parameter, values in optimizer.state.items()
        for key, value in values.items()
    }
