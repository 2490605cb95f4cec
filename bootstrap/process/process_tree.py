"""The processes below this one."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

import psutil

_PR_SET_CHILD_SUBREAPER = 36  # of linux/prctl.h
_PATIENCE_SECONDS = 10.0


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that ``kill_descendants`` finds it.

    Only Linux can do that; elsewhere an orphan that outlives its parent is nobody's.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_descendants() -> int:
    """Kill all processes below this one, stopped ones too, and wait until they are gone; return how many there were.

    One that the kernel does not let go of is left after ten seconds.
    """
    killed: set[int] = set()
    while found := [process for process in psutil.Process().children(recursive=True) if process.pid not in killed]:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=_PATIENCE_SECONDS)
        killed |= {process.pid for process in found}
    return len(killed)
