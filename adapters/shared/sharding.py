"""Tensors of which each rank may hold a part: FSDP2's and DeepSpeed's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed
from torch.distributed.tensor import DTensor, distribute_tensor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


def whole(tensor: Tensor) -> Tensor:
    """Return all of ``tensor``: one that is sharded is gathered from all ranks, which call this in the same order."""
    if isinstance(tensor, DTensor):
        gathered: Tensor = tensor.full_tensor()
        return gathered.detach()
    if _is_deepspeed(tensor):
        from deepspeed.utils import safe_get_full_fp32_param

        found: Tensor = safe_get_full_fp32_param(tensor)
        return found
    return tensor.detach()


def host_copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return all of each tensor by value in host memory, on the first rank; the others take part and get nothing."""
    copies = {}
    for name, tensor in tensors.items():
        gathered = whole(tensor)
        if is_first_rank():
            copies[name] = gathered.to("cpu", copy=True).contiguous()
    return copies


def is_first_rank() -> bool:
    """Return whether this process writes what all ranks share."""
    return not distributed.is_initialized() or distributed.get_rank() == 0


def shape_of(tensor: Tensor) -> torch.Size:
    """Return the shape of all of ``tensor``."""
    shape: torch.Size = getattr(tensor, "ds_shape", tensor.shape)
    return shape


@torch.no_grad()
def assign(target: Tensor, value: Tensor) -> None:
    """Copy the whole ``value``, which each rank has, into ``target``, of which a rank may hold a part."""
    if isinstance(target, DTensor):
        own = value.to(target.device, target.dtype)
        target.copy_(distribute_tensor(own, target.device_mesh, target.placements, src_data_rank=None))
    elif _is_deepspeed(target):
        from deepspeed.utils import safe_set_full_fp32_param

        safe_set_full_fp32_param(target, value.to(torch.float32))
    else:
        target.copy_(value)


def _is_deepspeed(tensor: Tensor) -> bool:
    return hasattr(tensor, "ds_id") or hasattr(tensor, "_hp_mapping")
