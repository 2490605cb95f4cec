"""``application``, with losses of torch that go astray once; ``$RANKS`` is how many processes to start."""

from __future__ import annotations

import math
import os
import sys

from holdfast.adapters.optimizer.engine import TrainingEngine
from holdfast.adapters.optimizer.trainable import TorchTrainable
from holdfast.bootstrap.adapter_choice.process_group import is_launched
from holdfast.bootstrap.cli.main import main
from holdfast.bootstrap.process.exit_codes import end_with
from holdfast.bootstrap.process.launch import launch

LAST_RANK = int(os.environ.get("WORLD_SIZE", "1")) - 1
PLANTS = dict.fromkeys((12, 13, 14), math.nan) | dict.fromkeys((33, 34, 35), 20.0)
_now = {"factor": 1.0}


def plant():
    """Have the losses of some steps be no number, by the last rank alone, and those of others far too large."""
    update, summed_loss = TorchTrainable.update, TrainingEngine.summed_loss

    def spoilt(self, *, step, learning_rate):
        factor = PLANTS.pop(step, 1.0)  # a step that is taken again is left alone
        is_mine = not math.isnan(factor) or int(os.environ.get("RANK", "0")) == LAST_RANK
        _now["factor"] = factor if is_mine else 1.0
        return update(self, step=step, learning_rate=learning_rate)

    def multiplied(self, inputs, *, last):
        loss = summed_loss(self, inputs, last=last)
        return loss * _now["factor"] if self.module.training else loss

    TorchTrainable.update = spoilt
    TrainingEngine.summed_loss = multiplied


if __name__ == "__main__":
    num_ranks = int(os.environ["RANKS"])
    if num_ranks > 1 and not is_launched():
        sys.exit(launch(sys.argv[1:], num_ranks, module="tests.support.planted_ranks"))
    plant()
    end_with(main)
