"""The process of one way; ``benchmarks.state.turns`` starts it."""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from pathlib import Path

from bootstrap.environment import set_library_defaults

_PR_SET_PDEATHSIG = 1  # of Linux's prctl.h


def _main(name: str, plan: dict[str, str]) -> None:
    from benchmarks.state.turns import Answers

    if name.startswith("run"):
        from benchmarks.state.training import train

        train(Answers(), plan)
        return
    from benchmarks.state.ways import WAYS

    answers = Answers()
    way = WAYS[name](Path(plan["material"]), Path(plan["folder"]))
    command = answers.give({})
    while True:
        command = answers.give(getattr(way, command)())


if __name__ == "__main__":
    if sys.platform == "linux":  # else it would stand still for ever if who measures is killed
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    set_library_defaults()  # which libraries read when they are imported; all ways get the same
    _main(sys.argv[1], json.loads(sys.argv[2]))
