import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.adapters.model_factory.memory import MemoryModelFactory
from holdfast.adapters.optimizer.memory import MemoryOptimizer
from holdfast.application.training.step_engine import StepEngine
from holdfast.domain.errors import NonFiniteGradients, OutOfMemory
from holdfast.domain.training.step_outcome import Evaluation, StepOutcome
from holdfast.ports.testing.optimizer import files_of, packed_batch, without_targets
from tests.support.loop import FaultyTrainable, nothing


def engine_of(micro_batch):
    model = MemoryModelFactory().build(vocabulary_size=257, end_of_text=256, seed=1)
    trainable = FaultyTrainable(MemoryOptimizer().prepare(model))
    return StepEngine(trainable, micro_batch=micro_batch), trainable


def step(engine, batch, *, learning_rate=1.0, on_applied=nothing):
    """Take the first step of a run of one rank, to its end."""
    return engine.step(
        batch,
        step=1,
        learning_rate=learning_rate,
        num_targets=batch.num_targets,
        num_tokens=batch.num_tokens,
        should_stop=lambda: False,
        on_applied=on_applied,
    )


def outcome_of(losses, **changes):
    figures = {"num_targets": 4, "num_tokens": 5, "grad_norm": 1.0, "learning_rate": 0.1}
    return StepOutcome(losses, **(figures | changes), micro_batch=2, step_seconds=0.1)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 10), st.integers(0, 100))
def test_the_micro_batch_changes_no_result(micro_batch, seed):
    """A step in parts of any size has the loss, the gradient and the weights of the step in one."""
    batch = packed_batch(seed=seed)
    (whole, one), (parts, many) = engine_of(batch.num_rows), engine_of(micro_batch)
    expected, got = (step(engine, batch) for engine in (whole, parts))
    assert got.loss == pytest.approx(expected.loss, rel=1e-12)
    assert got.grad_norm == pytest.approx(expected.grad_norm, rel=1e-12)
    np.testing.assert_allclose(many.inner.model.logits, one.inner.model.logits, rtol=0, atol=1e-12)


def test_the_outcome_tells_what_was_done():
    """Loss is the mean over all targets, tokens leave padding out, and the micro-batch is what was really used."""
    batch = packed_batch()
    engine, trainable = engine_of(micro_batch=100)
    expected = trainable.evaluate(batch) / batch.num_targets
    outcome = step(engine, batch, learning_rate=0.25)
    assert outcome.loss == pytest.approx(expected, rel=1e-12)
    assert (outcome.num_tokens, outcome.num_targets) == (batch.num_tokens, batch.num_targets)
    assert (outcome.learning_rate, outcome.micro_batch) == (0.25, batch.num_rows)
    assert outcome.step_seconds > 0


@pytest.mark.parametrize("error", [OutOfMemory, NonFiniteGradients, ZeroDivisionError])
def test_a_step_that_fails_in_its_middle_changes_nothing(error):
    """An error after some parts leaves the state of the step before, and the next step as it would have been."""
    batch = packed_batch()
    (engine, failing), (undisturbed, calm) = engine_of(2), engine_of(2)
    parts = []

    def fail_at_the_third(_, part):
        parts.append(part)
        if len(parts) == 3:
            raise error

    failing.before_part = fail_at_the_third
    with pytest.raises(error):
        step(engine, batch)
    assert files_of(failing.capture()) == files_of(calm.capture())
    for each in (engine, undisturbed):
        step(each, batch)
    assert files_of(failing.capture()) == files_of(calm.capture())


@pytest.mark.parametrize("supervised", [None, np.zeros((6, 16), np.bool_)])
def test_a_batch_without_targets_changes_nothing(supervised):
    """A step on rows of single tokens, or of tokens that are all masked, has no loss and leaves the state as it was."""
    engine, trainable = engine_of(2)
    step(engine, packed_batch())
    before, applied = files_of(trainable.capture()), []
    idle = without_targets(packed_batch()) if supervised is None else replace(packed_batch(), supervised=supervised)
    outcome = step(engine, idle, on_applied=lambda *told: applied.append(told))
    assert math.isnan(outcome.loss)
    assert (outcome.grad_norm, outcome.num_tokens, applied) == (0.0, idle.num_tokens, [(None, None)])
    assert files_of(trainable.capture()) == before


class Unread:
    """A number on a device: reading it is what costs."""

    def __init__(self, value):
        self.value = value
        self.reads = 0

    def __float__(self):
        self.reads += 1
        return self.value


def test_figures_stay_on_the_device_until_they_are_read():
    """An outcome is made without waiting for the device, and reading the loss adds the parts up exactly."""
    losses = [Unread(1e16), Unread(1.0), Unread(-1e16)]
    outcome = outcome_of(losses, num_targets=2)
    assert sum(loss.reads for loss in losses) == 0
    assert outcome.loss == 0.5


@given(st.floats(0, 1e6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_bits_per_byte_are_nats_over_bytes_in_base_two(nats, num_targets, num_bytes):
    """The two figures of an evaluation differ by their unit and by tokens against bytes."""
    evaluation = Evaluation(nats, num_targets, num_bytes)
    assert evaluation.loss * num_targets == pytest.approx(nats)
    assert evaluation.bits_per_byte * num_bytes * math.log(2) == pytest.approx(nats)
