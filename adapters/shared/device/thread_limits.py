"""Checks that a process can start many threads without coming near a limit of its system."""

from __future__ import annotations

import os
import resource
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path("/")
_MOST = 0.5  # fraction of a limit: other programs start threads too
_NEVER_OVERCOMMIT = "2"


def has_room_for_threads(number: int, root: Path = _ROOT) -> bool:
    """Return whether ``number`` more threads leave half of each limit on threads free, and memory is not limited.

    ``root`` is where ``proc`` and ``sys`` are mounted. Unreadable limits are ignored.
    """
    if any(
        resource.getrlimit(kind)[0] != resource.RLIM_INFINITY for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)
    ):
        return False
    if _text(root / "proc/sys/vm/overcommit_memory") == _NEVER_OVERCOMMIT:
        return False
    return all(used + number <= _MOST * limit for used, limit in _limits(root))


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Yield the number of threads and its limit: of each control group, of the system, of this user."""
    for group in _groups(root):
        used, limit = _text(group / "pids.current"), _text(group / "pids.max")
        if used.isdigit() and limit.isdigit():
            yield int(used), int(limit)
    in_system = _text(root / "proc/loadavg").partition("/")[2].partition(" ")[0]
    for name in ("threads-max", "pid_max"):
        limit = _text(root / "proc/sys/kernel" / name)
        if in_system.isdigit() and limit.isdigit():
            yield int(in_system), int(limit)
    of_user, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if of_user != resource.RLIM_INFINITY:
        yield _threads_of_user(root), of_user


def _threads_of_user(root: Path) -> int:
    number = 0
    for process in (root / "proc").glob("[0-9]*"):
        try:
            if process.stat().st_uid == os.getuid():
                number += sum(1 for _ in (process / "task").iterdir())
        except OSError:  # it has ended since
            continue
    return number


def _groups(root: Path) -> Iterator[Path]:
    """Yield the control groups of this process, and those around them, that may limit threads."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own = PurePosixPath(path.lstrip("/"))
        own = PurePosixPath() if ".." in own.parts else own  # outside what this container sees
        mounts = ("", "unified") if not controllers else ("pids",) if "pids" in controllers.split(",") else ()
        for mount in mounts:
            for group in (own, *own.parents):
                yield root / "sys/fs/cgroup" / mount / group


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return ""
