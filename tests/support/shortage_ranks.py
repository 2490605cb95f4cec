"""``application``, with torch out of memory on one of two ranks: ``$SHORTAGES`` lists rank:step:phase, each once.

Those that came are files of the folder ``$MET``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast.adapters.optimizer.trainable import TorchTrainable
from holdfast.bootstrap.adapter_choice.process_group import is_launched
from holdfast.bootstrap.cli.main import main
from holdfast.bootstrap.process.exit_codes import end_with
from holdfast.bootstrap.process.launch import launch_until_memory_fits

_now = {"step": 0}


def is_due(phase):
    """Return whether memory is to run out now; a process that is started again does not meet it again."""
    point = f"{os.environ['RANK']}:{_now['step']}:{phase}"
    if point not in os.environ["SHORTAGES"].split():
        return False
    try:
        Path(os.environ["MET"], f"met-{point}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def run_out():
    """Raise what torch raises."""
    msg = "CUDA out of memory. Tried to allocate 2.00 GiB."
    raise torch.OutOfMemoryError(msg)


def on_forward(module, _, output):
    """Run short within a layer's forward, or have its backward do so."""
    if not isinstance(module, torch.nn.Linear) or not output.requires_grad:
        return
    if is_due("forward"):
        run_out()
    if is_due("backward"):
        output.register_hook(lambda _: run_out())


def on_optimizer(*_):
    """Run short as parameters are about to change."""
    if is_due("optimizer"):
        run_out()


def fail_there():
    """Have torch run out of memory."""
    update = TorchTrainable.update

    def noted(self, *, step, learning_rate):
        _now["step"] = step
        return update(self, step=step, learning_rate=learning_rate)

    TorchTrainable.update = noted
    register_module_forward_hook(on_forward)
    register_optimizer_step_pre_hook(on_optimizer)


if __name__ == "__main__":
    if is_launched():
        fail_there()
        end_with(main)
    record, *arguments = sys.argv[1:]
    sys.exit(launch_until_memory_fits(arguments, 2, Path(record), print, module="tests.support.shortage_ranks"))
