"""The process of one way; ``benchmarks.turns`` starts it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.turns import Answers, end_with_parent
from holdfast.bootstrap.process.library_environment import set_library_defaults


def _main(name: str, plan: dict[str, str]) -> None:
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
    end_with_parent()
    set_library_defaults()  # which libraries read when they are imported; all ways get the same
    _main(sys.argv[1], json.loads(sys.argv[2]))
