"""How much host memory is left for this process."""

from __future__ import annotations

import ctypes
from pathlib import Path

import psutil

_CGROUP = Path("/sys/fs/cgroup")


def free_share(cgroup: Path = _CGROUP) -> float:
    """Return which share of memory can still be had: the machine's, or the control group's where that is less."""
    memory = psutil.virtual_memory()
    shares = [memory.available / memory.total]
    try:
        limit, used = (int((cgroup / f"memory.{name}").read_text()) for name in ("max", "current"))
        statistics = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no control group of version 2, or one without a limit ("max")
        return shares[0]
    reclaimable = int(statistics.get("inactive_file", 0))  # what the kernel drops first
    return min(*shares, (limit - used + reclaimable) / limit)


def give_back_freed() -> None:
    """Give what this process has freed back to the system where its C library, glibc, would keep it for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
