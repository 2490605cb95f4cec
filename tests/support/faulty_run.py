"""Trains as `train` does, with faults at given steps: ``python tests/support/faulty_run.py PLAN``.

``PLAN`` is JSON: ``settings`` and ``faults``, each the drill, the step and the length. The folder of the run has the
marks of the faults that have happened beside it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from holdfast.bootstrap.cli.summary import EndReport
from holdfast.bootstrap.process.exit_codes import code_of_signal, end_with, guarded
from holdfast.bootstrap.process.library_environment import set_library_defaults
from holdfast.bootstrap.process.signals import stopping_on_signals
from holdfast.bootstrap.run import Run
from holdfast.bootstrap.verification.fault_catalog import Planned
from holdfast.bootstrap.verification.faults import faults_of
from holdfast.configs.settings_layers import load_settings
from tests.support.command_line import environment

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def train_with_faults(settings: Sequence[str], faults: Sequence[Planned], cwd: Path) -> list[int]:
    """Train in processes of their own until one ends well; return their exit codes."""
    plan = json.dumps({"settings": settings, "faults": [(each.drill, each.step, each.length) for each in faults]})
    codes: list[int] = []
    while codes[-1:] != [0] and len(codes) <= len(faults):
        command = [sys.executable, "-m", "tests.support.faulty_run", plan]
        process = subprocess.run(command, cwd=cwd, env=environment(), capture_output=True, text=True, check=False)
        codes.append(process.returncode)
        (cwd / f"output-{len(codes)}").write_text(process.stdout + process.stderr)
    return codes


def _train(plan: str) -> int:
    chosen = json.loads(plan)
    set_library_defaults()
    settings = load_settings([], chosen["settings"], {}).settings
    folder = settings.run.directory
    faults = [Planned(*fault) for fault in chosen["faults"]]
    marker = lambda place: folder.with_name(f"{folder.name}.happened-{place}")  # noqa: E731  as a callable alone
    folder.parent.mkdir(exist_ok=True)
    run = Run(settings, faults_of(faults, marker))
    run.may_exit = True
    with stopping_on_signals(run.request_stop), EndReport(run, is_first_rank=True).written():
        run.run()
    return 0 if run.stopped_by is None or run.stopped_by.signal is None else code_of_signal(run.stopped_by.signal)


if __name__ == "__main__":
    end_with(lambda: guarded(lambda: _train(sys.argv[1])))
