"""The samples of each step, from the record of starts and roll-backs."""

import numpy as np
import pytest

from holdfast.domain.training.step_outcome import StepSamples


def started(step, samples, batch=4, excluded=""):
    return {"event": "RunStarted", "step": step, "samples": samples, "batch_size": batch, "excluded": excluded}


def rolled_back(step, samples):
    return {"event": "RolledBack", "step": step, "samples": samples}


def samples_of(events, last):
    found = StepSamples.of(events, last, batch=4, excluded="")
    return [found.of_step(step) for step in range(1, last + 1)]


def test_steps_take_the_next_samples_in_turn():
    """A run that was never interrupted takes a batch after the other."""
    assert samples_of([started(0, 0), {"event": "CheckpointSaved", "step": 2}], 3) == [(0, 4), (4, 8), (8, 12)]


def test_steps_after_a_resume_take_the_place_of_those_that_were_lost():
    """A step that was taken again has the samples of the last time, with the batch of that start."""
    events = [started(0, 0), started(2, 8, batch=6)]
    assert samples_of(events, 4) == [(0, 4), (4, 8), (8, 14), (14, 20)]


def test_batches_that_a_roll_back_skipped_belong_to_no_step():
    """After a roll-back that skips batches, steps continue behind these."""
    found = StepSamples.of([started(0, 0), rolled_back(2, 20)], 4, batch=4, excluded="")
    assert [found.of_step(step) for step in (1, 2, 3, 4)] == [(0, 4), (4, 8), (20, 24), (24, 28)]
    assert found.steps_of(np.array([0, 7, 8, 19, 20, 27, 28])).tolist() == [1, 2, 0, 0, 3, 4, 0]
    assert found.end == 28


def test_the_last_batch_of_finite_data_is_shorter():
    """Where a start continues in the middle of a batch, the step before it ended there."""
    assert samples_of([started(0, 0), started(2, 6)], 3) == [(0, 4), (4, 6), (6, 10)]


def test_each_step_has_the_exclusion_of_its_start():
    """The exclusion of a start holds from its first step on, also after a roll-back."""
    events = [started(0, 0, excluded="a"), started(4, 16, excluded="b"), rolled_back(2, 24)]
    found = StepSamples.of(events, 5, batch=4, excluded="")
    assert [found.stretch_of(step).excluded for step in range(1, 6)] == ["a", "a", "b", "b", "b"]


def test_records_of_earlier_versions_have_the_samples_of_the_settings():
    """Events without samples are counted by the size of the batch."""
    events = [{"event": "RunStarted", "step": 0}, {"event": "RunStarted", "step": 2}]
    assert samples_of(events, 3) == samples_of([], 3) == [(0, 4), (4, 8), (8, 12)]
    found = StepSamples.of(events, 3, batch=4, excluded="x")
    assert found.stretch_of(3).excluded == "x"


@pytest.mark.parametrize(("saved", "odd"), [([(2, 8), (3, 12)], None), ([(2, 8), (3, 28)], 3), ([(9, 9)], None)])
def test_a_checkpoint_that_disagrees_is_named(saved, odd):
    """The first checkpoint whose samples are not those of its step is returned."""
    assert StepSamples.of([started(0, 0)], 3, batch=4, excluded="").disagreeing(saved) == odd


def test_a_run_without_steps_has_none():
    """Before the first step there are no samples."""
    found = StepSamples.of([], 0, batch=4, excluded="")
    assert (found.last, found.end, found.steps_of(np.arange(3)).tolist()) == (0, 0, [0, 0, 0])
