"""The host memory that is left for this process."""

from __future__ import annotations

import ctypes
import math
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CGROUP, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
LIMITS = "memory.max", "memory.limit_in_bytes"
_COUNTS = {  # by the name of the limit: the memory in use, and the part of it that the kernel frees first
    LIMITS[0]: ("memory.current", "inactive_file"),
    LIMITS[1]: ("memory.usage_in_bytes", "total_inactive_file"),
}


def free_share(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> float:
    """Return the fraction of memory that is left: the smaller of the machine's and its control groups'."""
    return min(free / total for free, total in _rooms(cgroup, membership))


def free_bytes(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> int:
    """Return the bytes of memory that are left: the smaller of the machine's and its control groups'."""
    return int(min(free for free, _ in _rooms(cgroup, membership)))


def groups_of_memory(cgroup: Path = CGROUP, membership: Path = MEMBERSHIP) -> Iterator[tuple[Path, str]]:
    """Yield the control groups that bound the memory of this process, and the name of the file with their limit.

    ``cgroup`` is the mount point of control groups, version 2 or 1; ``membership`` is the file that lists those of this
    process.
    """
    for place, name in _own_groups(cgroup, membership):
        for folder in (place, *place.parents):
            if cgroup not in (folder, *folder.parents):
                break
            yield folder, name


def _own_groups(cgroup: Path, membership: Path) -> Iterator[tuple[Path, str]]:
    yield cgroup, LIMITS[0]
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            yield cgroup / path.lstrip("/"), LIMITS[0]
        elif "memory" in controllers.split(","):
            yield cgroup / "memory" / path.lstrip("/"), LIMITS[1]


def _rooms(cgroup: Path, membership: Path) -> Iterator[tuple[int, int]]:
    """Yield free and total bytes of the machine and of each control group with a limit below the machine's."""
    memory = psutil.virtual_memory()
    yield memory.available, memory.total
    for folder, name in dict.fromkeys(groups_of_memory(cgroup, membership)):
        used_name, reclaimable_name = _COUNTS[name]
        try:
            limit, used = int((folder / name).read_text()), int((folder / used_name).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such group, or one without a limit ("max")
            continue
        if 0 < limit < memory.total:
            yield max(0, limit - used + int(statistics.get(reclaimable_name, 0))), limit


def give_back_freed() -> None:
    """Return freed memory to the system, which the C library, glibc, would otherwise cache."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_ROOT = Path("/")
_FIRST, _UNIFIED = ("cpu", "cpu,cpuacct", "cpuacct,cpu"), ("", "unified")  # mount points of the two versions


def usable_cpus(root: Path = _ROOT, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of processors for each rank on this machine: its share of affinity and quota, at least 1.

    A quota of one and a half counts as two. ``root`` is where ``proc`` and ``sys`` are mounted.
    """
    granted = min([allowed_cpus(), *(max(1, math.ceil(quota)) for quota in _quotas(root))])
    return max(1, granted // int(environment.get("LOCAL_WORLD_SIZE") or 1))


def allowed_cpus() -> int:
    """Return the number of processors on which this process may run, without regard to quotas of time."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Yield each limit of this process's control groups, and of those around them, in processors."""
    for version, own in _groups(root / "proc" / "self" / "cgroup"):
        for mount in _UNIFIED if version == 2 else _FIRST:
            top = root / "sys" / "fs" / "cgroup" / mount
            for group in (own, *own.parents):
                quota = _unified(top / group) if version == 2 else _first(top / group)
                if quota is not None:
                    yield quota


def _groups(file: Path) -> Iterator[tuple[int, PurePosixPath]]:
    """Yield the control groups of version 1 and 2 that can limit this process, relative to their mount points."""
    try:
        lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # a system without them
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        parts = PurePosixPath(path.lstrip("/"))
        own = PurePosixPath() if ".." in parts.parts else parts  # outside what this container sees
        if number == "0" and not controllers:
            yield 2, own
        elif "cpu" in controllers.split(","):
            yield 1, own


def _unified(group: Path) -> float | None:
    try:
        quota, period = (group / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):  # none here, such as in the root group
        return None


def _first(group: Path) -> float | None:
    try:
        quota, period = (int((group / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    except (OSError, ValueError):
        return None
    return quota / period if quota > 0 else None
