"""The contract of ``Optimizer``, ``Trainable`` and ``Update``."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

from holdfast.domain.data.packing import ConcatPacking, place_rows
from holdfast.domain.data.row_index import read_rows
from holdfast.domain.errors import NonFiniteGradients, OutOfMemory, StateError
from holdfast.domain.training.text_generation import Sampling
from holdfast.ports.state_store import JoinedPart, StatePart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from weakref import ReferenceType

    from numpy.typing import NDArray

    from holdfast.domain.data.batch import Batch
    from holdfast.ports.optimizer import Optimizer, Trainable, Update

VOCABULARY_SIZE = 257
END_OF_TEXT = 256
_LENGTHS = (5, 16, 3, 20, 9, 7, 1, 30, 2)  # documents of a batch of 6 rows of 16 tokens, 3 of them padding


def write(parts: Iterable[StatePart | JoinedPart], folder: Path) -> Path:
    """Write ``parts`` into ``folder``, which is created, and return it."""
    folder.mkdir()
    for name, data in files_of(parts).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def files_of(parts: Iterable[StatePart | JoinedPart]) -> dict[str, bytes]:
    """Return the bytes of the files made of the ``parts`` of all ranks, to compare two states."""
    parts = list(parts)
    joined = [part for part in parts if isinstance(part, JoinedPart)]
    files = {part.name: b"".join(part.chunks()) for part in parts if isinstance(part, StatePart)}

    def read(name: str, offset: int, size: int) -> bytes:
        return files[name][offset : offset + size]

    made = {part.name: b"".join(part.chunks(read)) for part in joined}
    consumed = {name for part in joined for name in part.consumes}
    return {name: data for name, data in (files | made).items() if name not in consumed}


def packed_batch(*, seed: int = 0) -> Batch:
    """Return a batch of 6 rows of 16 tokens with documents that cross rows; the last row is padded."""
    generator = np.random.default_rng(seed)
    documents = [np.append(generator.integers(0, END_OF_TEXT, length - 1), END_OF_TEXT) for length in _LENGTHS]
    return read_rows(place_rows(documents, ConcatPacking(16)), 16)


def without_targets(batch: Batch) -> Batch:
    """Return ``batch`` with every token as a document of its own, so that no token is a target."""
    return replace(batch, starts=np.flatnonzero(batch.document_ids >= 0))


def masked(batch: Batch, *, seed: int = 0) -> tuple[Batch, Batch]:
    """Return ``batch`` trained on some of its tokens, whole rows without a target among them, and on all others."""
    supervised = np.random.default_rng(seed).random(batch.input_ids.shape) < 0.4
    supervised[[1, -1]] = False
    return replace(batch, supervised=supervised), replace(batch, supervised=~supervised)


def take_step(
    trainable: Trainable, batch: Batch, *, step: int, rate: float, rows: int = 1 << 30
) -> tuple[float, float]:
    """Train on ``batch`` in parts of ``rows`` rows; return its summed loss and the gradient's norm."""
    parts = list(batch.split(rows))
    with trainable.update(step=step, learning_rate=rate) as update:
        losses = [update.accumulate(part, weight=1 / batch.num_targets, last=part is parts[-1]) for part in parts]
        norm = update.apply()
    return math.fsum(map(float, losses)), float(norm)


class OptimizerCases(ABC):
    """Hooks that an optimizer's contract test must implement, and helpers for its tests.

    ``tolerance`` is the maximum rounding error of sums in another order, relative for losses and norms, absolute for
    weights. ``rate`` is a learning rate that trains the model.
    """

    tolerance: ClassVar[float]
    rate: ClassVar[float] = 0.01

    @abstractmethod
    def make_optimizer(self, *, seed: int = 0) -> Optimizer[Any]:
        """Return an optimizer for the models below."""

    @abstractmethod
    def make_model(self) -> Any:
        """Return a model of ``VOCABULARY_SIZE`` ids and at least 64 positions, the same each time, without dropout."""

    @abstractmethod
    def make_other_model(self) -> Any:
        """Return a model with other weight shapes."""

    @abstractmethod
    def make_model_with_dropout(self) -> Any | None:
        """Return a model with dropout, or None if there is none."""

    @abstractmethod
    def prepare_short_of_memory(self) -> tuple[Trainable, Sequence[ReferenceType[Any]]]:
        """Return a trainable with memory for one row at a time, and weak references to the memory of larger parts.

        The references are added while parts are tried; there are none if nothing is allocated before the error.
        """

    @abstractmethod
    def read_weights(self, folder: Path) -> Mapping[str, NDArray[Any]]:
        """Return the model's weights by name, each in its own shape and dtype, from the files of ``capture``."""

    def prepare(self, *, seed: int = 0) -> Trainable:
        """Return a new trainable; all trainables of the same seed are equal."""
        return self.make_optimizer(seed=seed).prepare(self.make_model())

    def need_retries(self, trainable: Trainable) -> None:
        """Skip the test if ``trainable`` cannot repeat an update (``is_retry_safe`` is False)."""
        if not trainable.is_retry_safe:
            pytest.skip("this optimizer says that an update which was begun must be finished")

    def trained(self, steps: int) -> Trainable:
        """Return a new trainable after ``steps`` steps."""
        trainable = self.prepare()
        self.train(trainable, range(1, steps + 1))
        return trainable

    def train(self, trainable: Trainable, steps: Iterable[int]) -> None:
        """Take the steps numbered ``steps``, each on its own batch."""
        for step in steps:
            take_step(trainable, packed_batch(seed=step), step=step, rate=self.rate)

    def weights_of(self, trainable: Trainable, tmp_path: Path) -> Mapping[str, NDArray[Any]]:
        """Return the weights of ``trainable`` by name, each in its own shape and dtype, from its ``capture``."""
        with TemporaryDirectory(dir=tmp_path) as scratch:
            return self.read_weights(write(trainable.capture(), Path(scratch) / "state"))


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


class OptimizerContract(UpdateContract):
    """The contract of every ``Optimizer``; derive and implement the hooks of ``OptimizerCases``."""

    def test_what_is_captured_without_a_copy_is_what_a_copy_holds(self) -> None:
        """Until the next step, repeated calls of ``capture`` with and without ``copy`` return the same files."""
        trainable = self.trained(2)
        found = [files_of(trainable.capture(copy=copy)) for copy in (False, True, False)]
        assert found[0] == found[1] == found[2]
        assert found[0] != files_of(self.trained(3).capture(copy=False))

    def test_later_steps_do_not_touch_what_was_captured(self) -> None:
        """``capture`` returns the state by value, and writes the same bytes each time."""
        trainable = self.trained(2)
        parts = trainable.capture()
        before = files_of(parts)
        self.train(trainable, (3,))
        assert files_of(parts) == before
        assert files_of(trainable.capture()) != before

    @pytest.mark.parametrize("steps", [0, 3])
    def test_restore_continues_bit_for_bit(self, steps: int, tmp_path: Path) -> None:
        """A new trainable, once restored, takes the same steps, bit for bit, as the captured trainable."""
        original, restored = self.trained(steps), self.trained(1)
        restored.restore(write(original.capture(), tmp_path / "state"))
        assert files_of(restored.capture()) == files_of(original.capture())
        later = range(steps + 1, steps + 4)
        self.train(original, later)
        self.train(restored, later)
        assert files_of(restored.capture()) == files_of(original.capture())

    def test_a_restored_state_does_not_need_its_folder(self, tmp_path: Path) -> None:
        """Files that are overwritten or deleted after ``restore`` change nothing."""
        original, restored = self.trained(2), self.prepare()
        folder = write(original.capture(), tmp_path / "state")
        restored.restore(folder)
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            size = path.stat().st_size
            with path.open("r+b") as file:
                file.write(bytes(size))
            path.unlink()
        self.train(original, (3,))
        self.train(restored, (3,))
        assert files_of(restored.capture()) == files_of(original.capture())

    def test_weights_only_restores_the_model_alone(self, tmp_path: Path) -> None:
        """With ``weights_only`` the model is read from the folder, and the optimizer does not change."""
        original, begun = self.trained(3), self.prepare()
        folder = write(original.capture(), tmp_path / "state")
        begun.restore(folder, weights_only=True)
        expected = self.read_weights(folder)
        for name, array in self.weights_of(begun, tmp_path).items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)
        self.train(original, (4,))
        self.train(begun, (4,))
        assert files_of(begun.capture()) != files_of(original.capture())

    @pytest.mark.parametrize("weights_only", [False, True])
    def test_a_folder_of_another_model_is_refused(self, weights_only: bool, tmp_path: Path) -> None:  # noqa: FBT001
        """A folder that does not fit raises ``StateError`` and changes nothing."""
        other = self.make_optimizer().prepare(self.make_other_model())
        folder = write(other.capture(), tmp_path / "state")
        trainable = self.trained(1)
        with pytest.raises(StateError):
            trainable.restore(folder, weights_only=weights_only)
        assert files_of(trainable.capture()) == files_of(self.trained(1).capture())

    @pytest.mark.parametrize("size", [None, 0, 100])
    def test_a_damaged_folder_is_refused(self, size: int | None, tmp_path: Path) -> None:
        """A folder with missing or truncated files raises ``StateError``, never the library's own error."""
        folder = write(self.trained(1).capture(), tmp_path / "state")
        for path in [path for path in folder.rglob("*") if path.is_file()]:
            if size is None:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(StateError):
            self.prepare().restore(folder)

    def test_evaluate_leaves_no_trace(self) -> None:
        """Evaluations between steps and during a step do not change later states, and return the same loss again."""
        trainable = self.trained(1)
        batch = packed_batch(seed=7)
        losses = [float(trainable.evaluate(batch)) for _ in range(2)]
        with trainable.update(step=2, learning_rate=self.rate) as update:
            update.accumulate(packed_batch(seed=2), weight=1 / packed_batch(seed=2).num_targets, last=True)
            losses.append(float(trainable.evaluate(batch)))
            update.apply()
        self.train(trainable, (3,))
        assert len(set(losses)) == 1
        assert files_of(trainable.capture()) == files_of(self.trained(3).capture())

    def test_evaluate_agrees_with_training(self) -> None:
        """Evaluation and training return the same summed loss, for the whole batch or row by row."""
        batch = packed_batch()
        trainable = self.trained(1)
        in_rows = math.fsum(float(trainable.evaluate(row)) for row in batch.split(1))
        whole = float(trainable.evaluate(batch))
        with trainable.update(step=2, learning_rate=self.rate) as update:
            trained = float(update.accumulate(batch, weight=1.0, last=True))
        assert [in_rows, trained] == pytest.approx([whole, whole], rel=self.tolerance)

    def test_the_losses_of_pieces_make_up_the_whole(self) -> None:
        """Each piece has the loss that it has in a batch of its own, and the total is exactly that of ``evaluate``."""
        batch = packed_batch()
        trainable = self.trained(1)
        total, pieces = trainable.evaluate_pieces(batch)
        alone = [float(trainable.evaluate(piece)) for piece in batch.pieces() if piece.num_targets]
        assert float(total) == float(trainable.evaluate(batch))
        assert pieces.shape == batch.starts.shape
        assert pieces[pieces != 0.0] == pytest.approx(alone, rel=max(self.tolerance, 1e-9))
        assert math.fsum(pieces) == pytest.approx(float(total), rel=max(self.tolerance, 1e-9))

    def losses_with_dropout(self, *, seed: int, steps: Sequence[int]) -> list[float]:
        """Return the loss of the same batch in an update of each of ``steps``; no update is applied."""
        model = self.make_model_with_dropout()
        if model is None:
            pytest.skip("this optimizer's models draw nothing while they train")
        trainable = self.make_optimizer(seed=seed).prepare(model)
        self.need_retries(trainable)
        losses = []
        for step in steps:
            with trainable.update(step=step, learning_rate=self.rate) as update:
                losses.append(float(update.accumulate(packed_batch(), weight=1.0, last=True)))
        return losses

    def test_a_step_s_randomness_follows_from_seed_and_step(self) -> None:
        """A repeated step has the same dropout, in any trainable; other steps and seeds have other dropout."""
        first, second, again = self.losses_with_dropout(seed=1, steps=(5, 6, 5))
        assert first == again != second
        assert self.losses_with_dropout(seed=1, steps=(6,)) == [second]
        assert self.losses_with_dropout(seed=2, steps=(5,)) != [first]

    def test_the_parts_of_a_step_draw_differently(self) -> None:
        """The parts of a step have different dropout masks."""
        model = self.make_model_with_dropout()
        if model is None:
            pytest.skip("this optimizer's models draw nothing while they train")
        with self.make_optimizer().prepare(model).update(step=1, learning_rate=self.rate) as update:
            losses = [float(update.accumulate(packed_batch(), weight=1.0, last=False)) for _ in range(2)]
        assert losses[0] != losses[1]

    def test_evaluate_does_not_drop_out(self) -> None:
        """Evaluations use no dropout and give the same loss again; training after them uses dropout."""
        model = self.make_model_with_dropout()
        if model is None:
            pytest.skip("this optimizer's models draw nothing while they train")
        trainable = self.make_optimizer().prepare(model)
        self.need_retries(trainable)
        batch = packed_batch()
        assert float(trainable.evaluate(batch)) == float(trainable.evaluate(batch))
        losses = []
        for step in (1, 2):
            with trainable.update(step=step, learning_rate=self.rate) as update:
                losses.append(float(update.accumulate(batch, weight=1.0, last=True)))
        assert losses[0] != losses[1]

    def test_generate_ends_after_so_many_tokens(self) -> None:
        """Without end-of-text, ``generate`` returns exactly ``max_new_tokens`` ids, all in the vocabulary."""
        sampling = Sampling(max_new_tokens=20, temperature=1.0, top_k=0)
        ids = self.prepare().generate([1], sampling, end_of_text=-1)
        assert len(ids) == 20
        assert all(0 <= token < VOCABULARY_SIZE for token in ids)

    def test_generate_ends_at_end_of_text(self) -> None:
        """The text ends before the first end-of-text, which is left out."""
        sampling = Sampling(max_new_tokens=20, temperature=1.0, top_k=0, seed=3)
        trainable = self.prepare()
        ids = list(trainable.generate([1, 2, 3], sampling, end_of_text=-1))
        for last in set(ids):
            assert list(trainable.generate([1, 2, 3], sampling, end_of_text=last)) == ids[: ids.index(last)]

    def test_generate_follows_from_its_seed(self) -> None:
        """Equal seeds give equal texts, and other seeds give other texts."""
        trainable = self.prepare()
        texts = [
            list(trainable.generate([1], Sampling(max_new_tokens=16, seed=seed), end_of_text=END_OF_TEXT))
            for seed in (1, 1, 2)
        ]
        assert texts[0] == texts[1] != texts[2]

    def test_temperature_zero_takes_the_likeliest(self) -> None:
        """At temperature 0 the text does not depend on the seed."""
        trainable = self.trained(1)
        texts = {
            tuple(trainable.generate([5], Sampling(max_new_tokens=8, temperature=0.0, seed=seed), end_of_text=-1))
            for seed in range(5)
        }
        assert len(texts) == 1

    @pytest.mark.parametrize(("top_k", "top_p"), [(1, 1.0), (0, 1e-6)])
    def test_a_single_candidate_is_the_likeliest(self, top_k: int, top_p: float) -> None:
        """Sampling from a single candidate, chosen by top-k or top-p, equals temperature 0."""
        trainable = self.trained(1)
        greedy = Sampling(max_new_tokens=8, temperature=0.0)
        single = Sampling(max_new_tokens=8, temperature=2.0, top_k=top_k, top_p=top_p, seed=4)
        texts = [list(trainable.generate([5], sampling, end_of_text=-1)) for sampling in (greedy, single)]
        assert texts[0] == texts[1]

    def test_generate_leaves_training_untouched(self) -> None:
        """Training after ``generate`` continues as if no text had been generated."""
        trainable = self.trained(1)
        trainable.generate([1], Sampling(max_new_tokens=8), end_of_text=END_OF_TEXT)
        self.train(trainable, (2, 3))
        assert files_of(trainable.capture()) == files_of(self.trained(3).capture())

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_stream_is_what_generate_returns(self, temperature: float) -> None:
        """``stream`` passes on the ids of ``generate``, one by one and in order."""
        trainable, told = self.trained(1), list[int]()
        sampling = Sampling(max_new_tokens=12, temperature=temperature, seed=2)
        trainable.stream([1, 2], sampling, end_of_text=END_OF_TEXT, tell=told.append)
        assert told == list(trainable.generate([1, 2], sampling, end_of_text=END_OF_TEXT))

    def test_a_stream_can_be_ended_early(self) -> None:
        """An error of ``tell`` ends ``stream`` at that id, and training continues as if nothing was generated."""
        trainable, told = self.trained(1), list[int]()

        def tell(token: int) -> None:
            told.append(token)
            if len(told) == 3:
                raise KeyError(token)

        with pytest.raises(KeyError):
            trainable.stream([1], Sampling(max_new_tokens=8), end_of_text=-1, tell=tell)
        assert told == list(trainable.generate([1], Sampling(max_new_tokens=3), end_of_text=-1))
        self.train(trainable, (2, 3))
        assert files_of(trainable.capture()) == files_of(self.trained(3).capture())

    def test_the_hardware_has_positive_figures(self) -> None:
        """The values of ``Hardware`` are present and positive."""
        trainable = self.prepare()
        hardware = trainable.hardware
        assert hardware.device
        assert hardware.precision
        assert hardware.num_parameters > 0
        assert hardware.flops_per_token is None or hardware.flops_per_token > 0
        assert hardware.peak_flops is None or hardware.peak_flops > 0
        assert trainable.memory_bytes() > 0
