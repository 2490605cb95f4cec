"""A rank's local shard of a tensor under FSDP2, tensor parallelism or DeepSpeed ZeRO."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from holdfast.adapters.shared.network.ranks import is_first_rank

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray
    from torch import Tensor

_ELEMENTS_AT_ONCE = 4 << 20  # of whole rows in host memory, while a block of columns is restored


class ReadRange(Protocol):
    """Reads a range of a flattened tensor."""

    def __call__(self, start: int, count: int, into: Tensor | None = None, /) -> Tensor:
        """Return ``count`` elements from ``start`` on, in the shape (count,).

        The result may be ``into``, a host tensor (count,), or a tensor of the dtype that was saved.
        """
        ...


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of the flattened tensor of ``shape``: ``values``, flat, at ``place``."""

    shape: torch.Size
    place: TensorBlock
    values: Tensor


def local_slice(tensor: Tensor, key: str | None = None, *, is_alone: bool = False) -> Slice:
    """Return this rank's part of ``tensor``, flat and in its dtype, not copied.

    A replicated tensor belongs to rank 0 as a whole; with ``is_alone`` this rank alone has the tensor.

    With ``key`` the part is that of DeepSpeed's optimizer state ``key`` for the parameter ``tensor``.
    """
    shape = shape_of(tensor)
    if isinstance(tensor, DTensor):
        values = tensor.to_local().detach().reshape(-1)
        return Slice(shape, _place_of(tensor), values[: None if _is_first_copy(tensor) else 0])
    if _is_deepspeed(tensor):
        start, part = _fragment(tensor, key)
        return Slice(shape, TensorBlock(start, part.numel()), part)
    values = tensor.detach().reshape(-1)[: None if is_alone or is_first_rank() else 0]
    return Slice(shape, TensorBlock(0, values.numel()), values)


def host_slices(slices: Mapping[str, Slice], *, copy: bool = True) -> dict[str, Slice]:
    """Return copies of ``slices`` in host memory, without the slices that are empty on this rank.

    Without ``copy`` slices that are in host memory already are not copied.
    """
    return {
        name: Slice(piece.shape, piece.place, piece.values.to("cpu", copy=copy).contiguous())
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
    place = _place_of(target) if isinstance(target, DTensor) else TensorBlock(0, local.numel())
    if not local.numel():
        return
    if place.repeats > 1:
        _assign_runs(local.detach(), place, read)
        return
    own = local.detach().view(-1) if local.device.type == "cpu" and local.is_contiguous() else None
    if (values := read(place.start, local.numel(), own)) is not own:
        local.copy_(values.view(local.shape))


def _assign_runs(local: Tensor, place: TensorBlock, read: ReadRange) -> None:
    """Copy the runs of ``place`` into ``local``, whole rows of the tensor at a time."""
    rows = local.view(place.repeats, place.length)
    at_once = max(1, _ELEMENTS_AT_ONCE // place.stride)
    for begin in range(0, place.repeats, at_once):
        part = rows[begin : begin + at_once]
        span = (len(part) - 1) * place.stride + place.length
        values = read(place.start + begin * place.stride, span)
        part.copy_(values.as_strided(part.shape, (place.stride, 1)))


def _place_of(tensor: DTensor) -> TensorBlock:
    """Return the place of this rank's part, which is a block of rows, or of rows and of columns of a matrix."""
    local, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    if not offsets or not math.prod(local):
        return TensorBlock(0, math.prod(local))
    row = math.prod(tensor.shape[1:])
    if tuple(local[1:]) == tuple(tensor.shape[1:]):
        return TensorBlock(offsets[0] * row, math.prod(local))
    assert tensor.ndim == 2, "only matrices are cut along columns"
    return TensorBlock(offsets[0] * row + offsets[1], local[1], row, local[0])


def _is_first_copy(tensor: DTensor) -> bool:
    """Return whether no earlier rank of the tensor's mesh has the same part."""
    coordinate = tensor.device_mesh.get_coordinate()
    assert coordinate is not None, "the rank is in the mesh of its own tensor"
    return not any(at for at, placement in zip(coordinate, tensor.placements, strict=True) if placement.is_replicate())


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


_MOST_RUNS = 1 << 26  # a damaged file may claim any number


class TensorBlock(NamedTuple):
    """``repeats`` runs of ``length`` elements, the first at ``start``, each ``stride`` elements after the one before.

    A block of rows is one run; a block of columns of a matrix is a run in each of its rows.
    """

    start: int
    length: int
    stride: int = 0
    repeats: int = 1

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return self.length * self.repeats

    def runs(self) -> NDArray[np.int64]:
        """Return the start and the count of each run, int64 (repeats, 2)."""
        starts = self.start + np.arange(self.repeats, dtype=np.int64) * self.stride
        return np.stack([starts, np.full_like(starts, self.length)], axis=1)


def cover(places: Iterable[TensorBlock], size: int) -> bool:
    """Return whether ``places`` together have each of ``size`` elements exactly once."""
    places = list(places)
    if sum(place.size for place in places) != size or sum(place.repeats for place in places) > _MOST_RUNS:
        return False
    runs = np.concatenate([np.zeros((1, 2), np.int64), *(place.runs() for place in places if place.size)])
    runs = runs[np.argsort(runs[:, 0], kind="stable")]
    ends = runs.sum(axis=1)
    return bool(ends[-1] == size and (runs[1:, 0] == ends[:-1]).all())
