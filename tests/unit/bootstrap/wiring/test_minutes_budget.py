"""Minutes that become steps before the first step."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.application.resources.micro_batch_search import full_rows
from holdfast.bootstrap.wiring.minutes_budget import StepTimes


@pytest.mark.parametrize(
    ("seconds", "every", "at_start", "steps"),
    [(128.0, 0, False, 100), (131.0, 0, True, 100), (143.0, 20, False, 100), (3.0, 20, True, 1), (-5.0, 0, False, 1)],
)
def test_steps_and_evaluations_fit(seconds, every, at_start, steps):
    """The end, each evaluation and each step with its update fit into the time, and one step is always taken."""
    times = StepTimes(step=1.0, evaluation=3.0)
    found = times.steps_in(seconds, evaluation_every=every, is_evaluated_at_start=at_start)
    assert found == pytest.approx(steps, abs=4)
    assert found >= 1
    assert found * 1.15 + 3.0 + 5.0 <= max(seconds, 10.0)


def test_a_full_row_is_one_document():
    """The batch of a trial has rows of one document each, as long as a row."""
    batch = full_rows(3, 8)
    assert batch.num_rows == 3
    assert batch.num_tokens == 24
    assert np.array_equal(batch.row_lengths, [8, 8, 8])
