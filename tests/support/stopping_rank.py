"""One rank of a run that the second rank stops in a phase of its preparation; prints how the rank has ended.

torchrun --standalone --nproc-per-node=2 -m tests.support.stopping_rank PHASE SETTING...
"""

from __future__ import annotations

import json
import os
import sys

from holdfast.bootstrap import build
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.events import PreparationStarted


def main() -> None:
    """Train until the stop, and print the phases that have begun and the reason of the stop."""
    phase, *settings = sys.argv[1:]
    run, begun = build(load_settings([], settings, {}).settings, report=lambda _: None), []

    def on_phase(event: PreparationStarted) -> None:
        begun.append(event.phase)
        if event.phase == phase and os.environ["RANK"] == "1":
            run.request_stop("the second rank is to leave")

    run.subscribe(PreparationStarted, on_phase)
    step = run.run().step
    ended = {"rank": os.environ["RANK"], "step": step, "begun": begun, "why": run.stopped_by and run.stopped_by.reason}
    os.write(1, f"ended {json.dumps(ended)}\n".encode())  # in one piece, as both ranks write


if __name__ == "__main__":
    main()
