"""The memory limit of a run, as a metric beside the memory that it uses."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.bootstrap.wiring.lazy import lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.domain.training.memory_fit import MemoryCapacity


def memory_limit(device: str | None) -> Callable[[], Mapping[str, float]]:
    """Return a function that returns the metric ``memory_limit_bytes``: the memory of the GPU, or of this process.

    ``device`` is that of the optimizer; only ``cuda`` has memory of its own here. The limit is read once.
    """
    figures = {"memory_limit_bytes": memory_limit_of(device)}
    return lambda: figures


def memory_limit_of(device: str | None) -> int:
    """Return the bytes of memory that a rank may use: the GPU's on ``cuda``, else the tightest limit of the process.

    That is the smallest of the machine, the control group and the resource limits.
    """
    if device is not None and device.startswith("cuda"):
        import torch

        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    room: MemoryCapacity = lazy("holdfast.adapters.shared.device.memory_limits:host_room")(
        int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
    )
    return int(room.num_bytes)
