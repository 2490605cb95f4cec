"""Copies of arrays to a GPU that neither wait for it nor allocate pinned memory again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

_ALIGNMENT = 16  # of the arrays in a buffer, in bytes; every dtype can be viewed at such an offset


@final
class PinnedCopies:
    """Copies several arrays to ``device`` at once, through two buffers of pinned memory that take turns.

    Allocating pinned memory took 12 ms on an H200 while kernels ran, which is longer than the host is ahead of the GPU.
    On a CPU the tensors share the memory of the arrays.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = [_Buffer(), _Buffer()] if device.type == "cuda" else []

    def copy(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
        """Return tensors with the values, dtypes and shapes of ``arrays``, which may be changed afterwards on a GPU."""
        if not self._buffers:
            return {name: torch.from_numpy(array).to(self._device) for name, array in arrays.items()}
        self._buffers.reverse()
        return self._buffers[0].copy(arrays, self._device)


class _Buffer:
    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)
        self._is_free = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def copy(self, arrays: Mapping[str, NDArray[Any]], device: torch.device) -> dict[str, Tensor]:
        sizes = [-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays.values()]
        self._is_free.synchronize()  # the copy before the last one
        if len(self._bytes) < sum(sizes):
            self._bytes = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=True)
        here, there = self._bytes[: sum(sizes)], torch.empty(sum(sizes), dtype=torch.uint8, device=device)
        copies = {}
        for (name, array), from_here, from_there in zip(
            arrays.items(), torch.split(here, sizes), torch.split(there, sizes), strict=True
        ):
            values = torch.from_numpy(array)
            from_here[: array.nbytes].view(values.dtype).view(values.shape).copy_(values)
            copies[name] = from_there[: array.nbytes].view(values.dtype).view(values.shape)
        there.copy_(here, non_blocking=True)
        self._is_free.record()
        return copies
