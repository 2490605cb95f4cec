"""Trains with a loss mask, as a script: its arguments are the step after which it is killed, and the settings."""

from __future__ import annotations

import os
import signal
import sys

from holdfast.bootstrap import build
from holdfast.bootstrap.adapter_choice.part_overrides import Around
from holdfast.bootstrap.process.exit_codes import end_with
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.events import StepCompleted
from tests.support.encoders import OddIdsEncoder


def main(last, settings):
    """Train; end by SIGKILL after the step ``last``, if the run comes to that."""
    run = build(load_settings([], settings, {}).settings, document_encoder=Around(OddIdsEncoder))

    def kill(event):
        if event.progress.step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    run.subscribe(StepCompleted, kill)
    run.run()
    return 0


if __name__ == "__main__":
    end_with(lambda: main(int(sys.argv[1]), sys.argv[2:]))
