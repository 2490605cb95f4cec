"""Gauges of the memory that this process uses and may use, on the GPU and on the host."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import final

import psutil
import torch

from holdfast.adapters.shared.device.host_memory import free_bytes

_STATUS = Path("/proc/self/status")
_PEAK_OF_PROCESS = Path("/proc/self/clear_refs")  # "5" resets the peak of the resident size; Linux


@final
class GpuGauge:
    """The memory of this process's GPU in bytes; ``share`` of it, less that of other processes, may be used."""

    def __init__(self, share: float) -> None:
        self._share = share

    def reset(self) -> None:
        """Reset the peak, and release cached memory."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()

    def peak(self) -> int:
        """Return the peak that torch's allocator reserved."""
        return torch.cuda.max_memory_reserved()

    def held(self) -> int:
        """Return the bytes allocated now."""
        return torch.cuda.memory_allocated()

    def most(self) -> int:
        """Return the peak that may be reached."""
        free, total = torch.cuda.mem_get_info()
        of_others = total - free - torch.cuda.memory_reserved()
        return int(self._share * total) - of_others


@final
class HostGauge:
    """The host's memory in bytes; ``share`` of the free part may be used, by machine, control group and RLIMIT_AS."""

    def __init__(self, share: float) -> None:
        self._share = share

    def reset(self) -> None:
        """Reset the peak where the operating system allows it; elsewhere it only rises."""
        if _PEAK_OF_PROCESS.exists():
            _PEAK_OF_PROCESS.write_text("5")

    def peak(self) -> int:
        """Return the peak resident size of the process."""
        return memory_bytes("cpu")

    def held(self) -> int:
        """Return the resident size now."""
        return int(psutil.Process().memory_info().rss)

    def most(self) -> int:
        """Return the peak that may be reached."""
        memory = psutil.Process().memory_info()
        free = free_bytes()
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit != resource.RLIM_INFINITY:
            free = min(free, max(0, limit - memory.vms))
        return int(memory.rss + self._share * free)


def gauge_of(device: str, share: float) -> GpuGauge | HostGauge:
    """Return the gauge of ``device`` (cpu or cuda)."""
    return GpuGauge(share) if device == "cuda" else HostGauge(share)


def memory_bytes(device: str) -> int:
    """Return the GPU's peak allocation, or the process's peak resident size without a GPU, in bytes."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else peak_of_process()


def peak_of_process() -> int:
    """Return the peak resident size of this process in bytes, on Linux since it was last reset.

    The peak of ``getrusage`` begins with that of the process which started this one: a service of several GB.
    """
    lines = _STATUS.read_bytes().splitlines() if _STATUS.exists() else []
    if own := [int(line.split()[1]) for line in lines if line.startswith(b"VmHWM:")]:
        return own[0] * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, other systems KiB


def memory_retries(device: str) -> int:
    """Return the number of allocations for which torch had to release cached GPU memory first."""
    return int(torch.cuda.memory_stats_as_nested_dict()["num_alloc_retries"]) if device == "cuda" else 0
