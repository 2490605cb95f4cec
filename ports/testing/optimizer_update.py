"""The contract of ``Update``: one optimizer step."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from holdfast.domain.errors import NonFiniteGradients, OutOfMemory
from holdfast.ports.testing.optimizer_cases import (
    VOCABULARY_SIZE,
    OptimizerCases,
    files_of,
    masked,
    packed_batch,
    take_step,
    without_targets,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast.ports.optimizer import Update


class UpdateContract(OptimizerCases):
    """The contract of every ``Update``: one test for each promise."""

    @pytest.mark.parametrize("rows", [1, 2, 4, 5])
    def test_parts_give_the_gradient_of_the_whole(self, rows: int, tmp_path: Path) -> None:
        """Parts, each with the weight 1 / (number of targets), equal the whole batch within rounding."""
        batch = packed_batch()
        whole, parts = self.prepare(), self.prepare()
        expected = take_step(whole, batch, step=1, rate=self.rate)
        np.testing.assert_allclose(
            take_step(parts, batch, step=1, rate=self.rate, rows=rows), expected, rtol=self.tolerance
        )
        weights = self.weights_of(whole, tmp_path)
        for name, array in self.weights_of(parts, tmp_path).items():
            np.testing.assert_allclose(array, weights[name], rtol=0, atol=self.tolerance, err_msg=name)

    def test_a_step_lowers_the_loss_of_its_batch(self) -> None:
        """``apply`` lowers the loss at the given learning rate, and changes nothing at rate 0."""
        batch = packed_batch()
        still, moved = self.prepare(), self.prepare()
        before = float(still.evaluate(batch))
        norm = take_step(still, batch, step=1, rate=0.0)[1]
        take_step(moved, batch, step=1, rate=self.rate)
        assert norm > 0
        assert float(still.evaluate(batch)) == before
        assert float(moved.evaluate(batch)) < before

    def test_a_part_s_loss_is_summed_and_unweighted(self) -> None:
        """``accumulate`` returns the summed loss in nats, independent of ``weight``."""
        batch = packed_batch()
        with self.prepare().update(step=1, learning_rate=self.rate) as update:
            losses = [float(update.accumulate(batch, weight=weight, last=False)) for weight in (1.0, 0.01)]
        assert losses[0] == losses[1]
        assert losses[0] / batch.num_targets == pytest.approx(math.log(VOCABULARY_SIZE), rel=0.2)

    def test_padding_and_first_tokens_are_no_targets(self) -> None:
        """Only tokens marked by the loss mask are targets: a batch without targets has the loss 0."""
        assert float(self.prepare().evaluate(without_targets(packed_batch()))) == 0.0

    def test_only_supervised_tokens_have_a_loss(self) -> None:
        """A loss mask and its inverse divide the loss of the batch, and each piece's loss is that of its targets."""
        batch, trainable = packed_batch(), self.trained(1)
        halves = masked(batch)
        losses = [float(trainable.evaluate(half)) for half in halves]
        assert min(losses) > 0
        assert math.fsum(losses) == pytest.approx(float(trainable.evaluate(batch)), rel=self.tolerance)
        for half in halves:
            total, pieces = trainable.evaluate_pieces(half)
            assert [loss > 0 for loss in pieces] == [piece.num_targets > 0 for piece in half.pieces()]
            assert math.fsum(pieces) == pytest.approx(float(total), rel=max(self.tolerance, 1e-9))

    @pytest.mark.parametrize("rows", [1, 2, 6])
    def test_only_supervised_tokens_have_a_gradient(self, rows: int, tmp_path: Path) -> None:
        """The gradients under a loss mask and its inverse, also of rows without a target, add up to that of all."""
        batch = packed_batch()
        whole, parts = self.prepare(), self.prepare()
        expected = take_step(whole, batch, step=1, rate=self.rate)
        weight, halves = 1 / batch.num_targets, [part for half in masked(batch) for part in half.split(rows)]
        with parts.update(step=1, learning_rate=self.rate) as update:
            losses = [float(update.accumulate(part, weight=weight, last=part is halves[-1])) for part in halves]
            norm = float(update.apply())
        np.testing.assert_allclose([math.fsum(losses), norm], expected, rtol=self.tolerance)
        weights = self.weights_of(whole, tmp_path)
        for name, array in self.weights_of(parts, tmp_path).items():
            np.testing.assert_allclose(array, weights[name], rtol=0, atol=self.tolerance, err_msg=name)

    def test_a_part_without_targets_adds_nothing(self) -> None:
        """A part in which no token is supervised has the loss 0, and the step is the same as without it."""
        batch, nothing = packed_batch(), without_targets(packed_batch(seed=5))
        masked_out = replace(packed_batch(seed=6), supervised=np.zeros((6, 16), np.bool_))
        with_it, without_it = self.trained(1), self.trained(1)
        with with_it.update(step=2, learning_rate=self.rate) as update:
            weight = 1 / batch.num_targets
            losses = [
                float(update.accumulate(part, weight=weight, last=part is masked_out))
                for part in (nothing, batch, masked_out)
            ]
            update.apply()
        take_step(without_it, batch, step=2, rate=self.rate)
        assert losses == [0.0, losses[1], 0.0]
        assert files_of(with_it.capture()) == files_of(without_it.capture())

    def test_nothing_changes_before_apply(self) -> None:
        """Gradients do not change the captured state before ``apply``."""
        trainable = self.trained(2)
        self.need_retries(trainable)
        before = files_of(trainable.capture())
        with trainable.update(step=3, learning_rate=self.rate) as update:
            update.accumulate(packed_batch(), weight=1.0, last=True)
            assert files_of(trainable.capture()) == before

    def test_an_abandoned_update_leaves_no_trace(self) -> None:
        """Training continues after an update without ``apply`` as if it had never begun."""
        trainable = self.trained(1)
        self.need_retries(trainable)
        with trainable.update(step=2, learning_rate=self.rate) as update:
            update.accumulate(packed_batch(seed=9), weight=1.0, last=False)
        self.train(trainable, (2, 3))
        assert files_of(trainable.capture()) == files_of(self.trained(3).capture())

    def interrupt(self, update: Update) -> None:
        """Raise an error within ``update``, between two parts."""
        with update:
            update.accumulate(packed_batch(seed=9), weight=1.0, last=False)
            raise InterruptedError

    def test_an_update_that_an_error_ends_leaves_no_trace(self) -> None:
        """An error during a step reaches the caller, and the step can be repeated."""
        trainable = self.trained(1)
        self.need_retries(trainable)
        with pytest.raises(InterruptedError):
            self.interrupt(trainable.update(step=2, learning_rate=self.rate))
        self.train(trainable, (2, 3))
        assert files_of(trainable.capture()) == files_of(self.trained(3).capture())

    @pytest.mark.parametrize("weight", [math.inf, math.nan])
    @pytest.mark.parametrize("steps", [0, 1])
    def test_non_finite_gradients_change_nothing(self, weight: float, steps: int) -> None:
        """Non-finite gradients raise ``NonFiniteGradients``; training continues as if the update had never begun."""
        trainable = self.trained(steps)
        with trainable.update(step=steps + 1, learning_rate=self.rate) as update:
            update.accumulate(packed_batch(), weight=weight, last=True)
            with pytest.raises(NonFiniteGradients):
                update.apply()
        assert files_of(trainable.capture()) == files_of(self.trained(steps).capture())
        self.train(trainable, (steps + 1,))
        assert files_of(trainable.capture()) == files_of(self.trained(steps + 1).capture())

    def test_a_shortage_of_memory_changes_nothing(self) -> None:
        """A part that does not fit raises ``OutOfMemory``; a retry in smaller parts is not affected by the failure."""
        batch = packed_batch()
        short, ample = self.prepare_short_of_memory()[0], self.prepare()
        self.need_retries(ample)
        with pytest.raises(OutOfMemory):
            take_step(short, batch, step=1, rate=self.rate)
        assert files_of(short.capture()) == files_of(ample.capture())
        take_step(short, batch, step=1, rate=self.rate, rows=1)
        take_step(ample, batch, step=1, rate=self.rate, rows=1)
        assert files_of(short.capture()) == files_of(ample.capture())

    def test_a_shortage_in_an_evaluation_changes_nothing(self) -> None:
        """``evaluate`` raises ``OutOfMemory`` and changes nothing."""
        batch = packed_batch()
        short, _ = self.prepare_short_of_memory()
        self.need_retries(short)
        with pytest.raises(OutOfMemory):
            short.evaluate(batch)
        assert [float(short.evaluate(row)) for row in batch.split(1)] == [
            float(self.prepare().evaluate(row)) for row in batch.split(1)
        ]

    def test_a_shortage_holds_nothing_alive(self) -> None:
        """A reference to ``OutOfMemory`` and its traceback does not keep memory alive that a retry needs."""
        trainable, allocated = self.prepare_short_of_memory()
        self.need_retries(trainable)
        batch = packed_batch()
        attempts: list[Callable[[], object]] = [
            lambda: take_step(trainable, batch, step=1, rate=self.rate),
            lambda: take_step(trainable, batch, step=1, rate=self.rate, rows=2),
            lambda: trainable.evaluate(batch),
        ]
        kept = []
        for attempt in attempts:
            with pytest.raises(OutOfMemory) as raised:
                attempt()
            kept.append(raised.value)
        assert [reference() for reference in allocated] == [None] * len(allocated)
        assert all(str(error) for error in kept)
