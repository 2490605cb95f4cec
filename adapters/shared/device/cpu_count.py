"""The number of processors that this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
