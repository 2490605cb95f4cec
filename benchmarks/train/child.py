"""The process in which one way trains; ``benchmarks.train.turns`` starts it."""

from __future__ import annotations

import ctypes
import json
import signal
import sys

from bootstrap.environment import set_library_defaults

_PR_SET_PDEATHSIG = 1  # of Linux's prctl.h

if __name__ == "__main__":
    if sys.platform == "linux":  # else it would stand still for ever if who measures is killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if sys.argv[1] != "trainer":
        set_library_defaults()  # which libraries read when they are imported
    from benchmarks.train.ways import train

    train(sys.argv[1], json.loads(sys.argv[2]))
