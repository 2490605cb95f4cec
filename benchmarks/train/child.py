"""The process in which one way trains; ``benchmarks.turns`` starts it."""

from __future__ import annotations

import json
import sys

from benchmarks.turns import end_with_parent
from holdfast.bootstrap.process.library_environment import set_library_defaults

if __name__ == "__main__":
    end_with_parent()
    if sys.argv[1] != "trainer":
        set_library_defaults()  # which libraries read when they are imported
    from benchmarks.train.ways import train

    train(sys.argv[1], json.loads(sys.argv[2]))
