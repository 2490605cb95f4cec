"""A rank's local shard of a tensor under FSDP2 or DeepSpeed ZeRO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.distributed.tensor import DTensor, Shard

from holdfast.adapters.shared.network.ranks import is_first_rank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class ReadRange(Protocol):
    """Reads a range of a flattened tensor."""

    def __call__(self, start: int, count: int, into: Tensor | None = None, /) -> Tensor:
        """Return ``count`` elements from ``start`` on, in the shape (count,).

        The result may be ``into``, a host tensor (count,), or a tensor of the dtype that was saved.
        """
        ...


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of the flattened tensor of ``shape``: ``values`` (count,) from the element ``start`` on."""

    shape: torch.Size
    start: int
    values: Tensor


def local_slice(tensor: Tensor, key: str | None = None) -> Slice:
    """Return this rank's part of ``tensor``, flat and in its dtype, not copied.

    A replicated tensor belongs to rank 0 as a whole.

    With ``key`` the part is that of DeepSpeed's optimizer state ``key`` for the parameter ``tensor``.
    """
    shape = shape_of(tensor)
    if isinstance(tensor, DTensor):
        return Slice(shape, _first_element(tensor), tensor.to_local().detach().reshape(-1))
    if _is_deepspeed(tensor):
        return Slice(shape, *_fragment(tensor, key))
    return Slice(shape, 0, tensor.detach().reshape(-1)[: None if is_first_rank() else 0])


def host_slices(slices: Mapping[str, Slice], *, copy: bool = True) -> dict[str, Slice]:
    """Return copies of ``slices`` in host memory, without the slices that are empty on this rank.

    Without ``copy`` slices that are in host memory already are not copied.
    """
    return {
        name: Slice(piece.shape, piece.start, piece.values.to("cpu", copy=copy).contiguous())
        for name, piece in slices.items()
        if piece.values.numel()
    }


def host_tensors(slices: Mapping[str, Slice], *, copy: bool = True) -> dict[str, Tensor]:
    """Return the tensors of ``slices``, which are whole, in their shapes and dtypes; empty except on rank 0.

    ``copy`` is that of ``host_slices``.
    """
    return {name: piece.values.view(piece.shape) for name, piece in host_slices(slices, copy=copy).items()}


def shape_of(tensor: Tensor) -> torch.Size:
    """Return the shape of the whole ``tensor``."""
    shape: torch.Size = getattr(tensor, "ds_shape", tensor.shape)
    return shape


@torch.no_grad()
def assign(target: Tensor, read: ReadRange, key: str | None = None) -> None:
    """Copy this rank's part of ``target`` from ``read``, cast to its dtype; ``key`` is as in ``local_slice``."""
    if _is_deepspeed(target):
        _set_fragment(target, read, key)
        return
    local = target.to_local() if isinstance(target, DTensor) else target
    start = _first_element(target) if isinstance(target, DTensor) else 0
    if not local.numel():
        return
    own = local.detach().view(-1) if local.device.type == "cpu" and local.is_contiguous() else None
    if (found := read(start, local.numel(), own)) is not own:
        local.copy_(found.view(local.shape))


def _first_element(tensor: DTensor) -> int:
    """Return where this rank's part begins: ranks have equally many rows, but the last ones fewer or none."""
    assert tensor.placements == (Shard(0),), "fully_shard cuts along rows"
    num_rows, mesh = tensor.shape[0], tensor.device_mesh
    first_row = min(num_rows, -(-num_rows // mesh.size()) * mesh.get_local_rank())
    return first_row * (tensor.numel() // num_rows)


def _is_deepspeed(tensor: Tensor) -> bool:
    return hasattr(tensor, "ds_id") or hasattr(tensor, "_hp_mapping")


def _fragment(parameter: Any, key: str | None) -> tuple[int, Tensor]:
    """Return where this rank's part of the fp32 parameter, or of its state, begins, and that part."""
    if hasattr(parameter, "ds_id"):
        zero = parameter._z3_optimizer  # noqa: SLF001  as deepspeed.utils has it
        part: Tensor = zero.get_local_fp32_param(parameter, key)
        start = min(parameter.ds_numel, zero._get_param_partition_rank(parameter) * part.numel())  # noqa: SLF001
        return start, part.detach()[: parameter.ds_numel - start]  # the last parts are padded
    mapping = parameter._hp_mapping  # noqa: SLF001
    if mapping is None:
        return 0, torch.empty(0)
    return mapping.lp_fragment_address.start, mapping.get_hp_fragment(key).detach()


def _set_fragment(parameter: Any, read: ReadRange, key: str | None) -> None:
    start, part = _fragment(parameter, key)
    if not hasattr(parameter, "ds_id"):
        if part.numel():
            part.copy_(read(start, part.numel()))
        return
    padded = torch.zeros(parameter.ds_tensor.numel(), dtype=part.dtype, device=part.device)
    if part.numel():
        padded[: part.numel()] = read(start, part.numel())
    parameter._z3_optimizer.set_local_hp_param(padded, parameter, key)  # noqa: SLF001
