"""The memory limits of a process: of the machine, its control group, and its resource limits."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import psutil

from holdfast.adapters.shared.device.host_memory import CGROUP, MEMBERSHIP, groups_of_memory
from holdfast.domain.sizes import shown_size
from holdfast.domain.training.memory_fit import MemoryCapacity

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
