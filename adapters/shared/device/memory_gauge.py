"""Gauges of the memory that this process uses and may use, on the GPU and on the host."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING, final

import psutil
import torch

from holdfast.adapters.shared.device.host_memory import CGROUP, MEMBERSHIP, free_bytes, groups_of_memory
from holdfast.domain.sizes import shown_size
from holdfast.domain.training.memory_fit import MemoryCapacity

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def host_room(num_processes: int = 1, *, cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> MemoryCapacity:
    """Return the tightest room of this process, one of ``num_processes`` that share machine and control group.

    ``cgroup`` is the mount point of control groups, version 2 or 1; ``membership`` is the file that lists those of this
    process. Swap counts as memory, although it is slow. Memory used by other processes counts as free.
    """
    swap = psutil.swap_memory().total
    shared = [(psutil.virtual_memory().total + swap, "this machine has {} of memory")]
    shared += [(limit + swap, "its control group allows {} of memory") for limit in _group_limits(cgroup, membership)]
    rooms = [MemoryCapacity(size / num_processes, words.format(shown_size(size))) for size, words in shared]
    if num_processes > 1:
        rooms = [MemoryCapacity(room.num_bytes, f"{room.words} for {num_processes} processes") for room in rooms]
    return min([*rooms, *_own_limits()], key=lambda room: room.num_bytes)


def gpu_room(num_bytes: int) -> MemoryCapacity:
    """Return the room of a GPU with ``num_bytes`` of memory."""
    return MemoryCapacity(num_bytes, f"the GPU has {shown_size(num_bytes)}")


def _group_limits(cgroup: Path, membership: Path) -> Iterator[int]:
    """Yield the limits of the control group and all groups above it, as far as they can be read."""
    for folder, name in groups_of_memory(cgroup, membership):
        try:
            yield int((folder / name).read_text())
        except (OSError, ValueError):  # none there, or "max"
            continue


def _own_limits() -> Iterator[MemoryCapacity]:
    memory = psutil.Process().memory_info()
    used = {"RLIMIT_AS": memory.vms, "RLIMIT_DATA": getattr(memory, "data", 0)}
    for name, taken in used.items():
        limit, _ = resource.getrlimit(getattr(resource, name))
        if limit != resource.RLIM_INFINITY:
            left = max(0, limit - taken)
            yield MemoryCapacity(left, f"{name} is {shown_size(limit)}, of which {shown_size(left)} are left")
