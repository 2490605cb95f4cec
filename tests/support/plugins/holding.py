"""A handler from outside that has a run wait."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.domain.events import StepCompleted


def subscribe(bus, inbox, *, file):
    """Have the run wait behind the step that ``file`` names, as long as it does, unless it is asked to stop."""
    place = Path(file)

    def is_held(step):
        try:
            return step >= int(place.read_text())
        except FileNotFoundError:
            return False

    def wait(event):
        while is_held(event.progress.step) and not inbox.stop_requested:
            time.sleep(0.005)

    bus.subscribe(StepCompleted, wait)
