"""T13: kills at random steps, within an accumulation, at the edges of epochs, and of runs that were resumed."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.training.budget import Budget
from tests.support.encoders import BYTES, CONSONANTS
from tests.support.file_faults import MEMORY
from tests.support.loop import Loop
from tests.support.streams import Plan

STEPS = 24


class KilledError(BaseException):
    """Stands for the end of the process: nothing is saved behind it."""


def loop_over(root, mode, *, beside, encoder=BYTES):
    """Return a run of several epochs, each batch in two parts, as a new process would make it."""
    store, plan = DiskStateStore(root, Retention(2)), Plan(mode, prefetch=2, encoder=encoder)
    return Loop(store, plan=plan, budget=Budget(steps=STEPS), micro_batch=2, save_every=3, saves_beside=beside)


def killed(loop, step, part):
    """Train until that part of that step, and no further; return whether it came to that."""
    count = 0

    def before_part(number, _):
        nonlocal count
        count += number == step
        if number == step and count == part:
            raise KilledError

    loop.trainable.before_part = before_part
    try:
        loop.run()
    except KilledError:
        loop.checkpoints.flush()  # a thread would not have outlived the process; here it must not meet the next one
        return True
    return False


@pytest.mark.parametrize(
    ("mode", "num_runs", "encoder"),
    [
        ("cache", 3, BYTES),
        ("cache", 2, CONSONANTS),
        ("stream", 2, CONSONANTS),
        *(pytest.param(mode, 20, BYTES, marks=pytest.mark.slow) for mode in ("cache", "stream")),
    ],
)
def test_kills_at_random_steps_change_nothing(mode, num_runs, encoder):
    """Killed three times each, before either part of a random step, runs take the very steps of one that was not."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        whole = loop_over(Path(folder) / "whole", mode, beside=False, encoder=encoder)
        whole.run()
        lanes = whole.store.load().info.progress.cursor.lanes
        assert max((lane.epoch for lane in lanes), default=2) > 1
        for number in range(num_runs):
            chance = random.Random(number)
            root, rows, resumes = Path(folder) / f"{number}", {}, 0
            for step in sorted(chance.sample(range(1, STEPS + 1), 3)):
                loop = loop_over(root, mode, beside=chance.random() < 0.5, encoder=encoder)
                resumes += killed(loop, step, chance.choice([1, 2]))
                assert all(rows.get(taken, consumed) == consumed for taken, consumed in loop.rows.items())
                rows |= loop.rows
            last = loop_over(root, mode, beside=False, encoder=encoder)
            last.run()
            assert resumes == 3
            assert last.state == whole.state, number
            assert rows | last.rows == whole.rows, number
