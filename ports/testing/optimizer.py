"""The contract of ``Optimizer``, ``Trainable`` and ``Update``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from holdfast.domain.errors import StateError
from holdfast.domain.training.text_generation import Sampling
from holdfast.ports.testing.optimizer_cases import END_OF_TEXT, VOCABULARY_SIZE, files_of, packed_batch, write
from holdfast.ports.testing.optimizer_update import UpdateContract

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


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
