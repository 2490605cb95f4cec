"""The average of the weights that a torch optimizer keeps beside them."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors.torch import load_file
from torch.optim.swa_utils import AveragedModel

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.optimizer.optimizer_factory import OptimizerSpec
from holdfast.adapters.shared.modeling.lora import LoraPlan, add_lora
from holdfast.domain.errors import OutOfMemory, StateError
from holdfast.domain.training.text_generation import Sampling
from holdfast.ports.testing.optimizer import (
    END_OF_TEXT,
    VOCABULARY_SIZE,
    files_of,
    packed_batch,
    take_step,
    write,
)
from tests.contracts.test_optimizer import TINY, run_short_of_memory

DECAY = 0.6


def model_of(**changes):
    """Return a tiny model, always the same."""
    factory = HuggingfaceModelFactory(config=TINY | changes)
    return factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)


def prepared(model, decay=DECAY):
    """Return ``model`` in the optimizer, with an average of this ``decay``."""
    algorithm = OptimizerSpec(epsilon=1e-2, ema_decay=decay)
    return AccelerateOptimizer(device="cpu", precision="fp32", algorithm=algorithm).prepare(model)


def train(trainable, steps):
    """Take the steps numbered ``steps``."""
    for step in steps:
        take_step(trainable, packed_batch(seed=step), step=step, rate=0.01)


def weights_in(trainable, folder, file):
    """Return the tensors of a file of the state, captured into the new ``folder``."""
    return load_file(write(trainable.capture(), folder) / file)


def test_the_average_is_that_of_torch(tmp_path):
    """The average equals, bit for bit, that of ``AveragedModel`` with the documented decay of each step."""
    model = model_of()
    plain = AveragedModel(copy.deepcopy(model.network), avg_fn=None)
    plain.n_averaged += 1  # it begins as a copy of the first weights
    trainable = prepared(model)
    for step in range(1, 9):
        train(trainable, [step])
        decay = min(DECAY, (1 + step) / (10 + step))
        plain.avg_fn = lambda averaged, trained, _, decay=decay: torch.lerp(averaged, trained, 1 - decay)
        plain.update_parameters(model.network)
    expected = plain.module.state_dict()
    found = weights_in(trainable, tmp_path / "state", "ema.safetensors")
    assert found
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_evaluation_uses_the_average_and_leaves_the_weights(tmp_path):
    """The loss and the text are those of a model with the averaged weights, and the trained ones stay bit for bit."""
    trainable = prepared(model_of())
    train(trainable, range(1, 5))
    before = files_of(trainable.capture())
    folder = write(trainable.capture(), tmp_path / "state")
    (folder / "model.safetensors").write_bytes((folder / "ema.safetensors").read_bytes())
    averaged = prepared(model_of(), decay=None)
    averaged.restore(folder, weights_only=True)
    sampling = Sampling(max_new_tokens=12, temperature=1.0, seed=3)
    assert float(trainable.evaluate(packed_batch())) == float(averaged.evaluate(packed_batch()))
    assert trainable.generate([1], sampling, end_of_text=-1) == averaged.generate([1], sampling, end_of_text=-1)
    assert files_of(trainable.capture()) == before


def test_the_average_survives_a_restart_bit_for_bit(tmp_path):
    """A trainable restored in the middle has the same average after later steps as one that went on."""
    original, restored = prepared(model_of()), prepared(model_of())
    train(original, range(1, 4))
    restored.restore(write(original.capture(), tmp_path / "state"))
    for trainable in (original, restored):
        train(trainable, range(4, 7))
    files = files_of(original.capture())
    assert files_of(restored.capture()) == files
    assert files["ema.safetensors"] != files["model.safetensors"]


def test_evaluation_that_runs_out_of_memory_gives_the_weights_back():
    """After an evaluation that does not fit into memory the trained weights and the average are as before."""
    model = model_of()
    run_short_of_memory(model.network)
    trainable = prepared(model)
    for step in (1, 2):
        take_step(trainable, packed_batch(seed=step), step=step, rate=0.01, rows=1)
    before = files_of(trainable.capture())
    with pytest.raises(OutOfMemory):
        trainable.evaluate(packed_batch())
    assert files_of(trainable.capture()) == before


def test_without_an_average_in_the_checkpoint_it_begins_with_the_weights(tmp_path):
    """A run that begins to average continues from a checkpoint without an average, with its weights as the first."""
    before, later = prepared(model_of(), decay=None), prepared(model_of())
    train(before, (1, 2))
    train(later, (1,))
    later.restore(write(before.capture(), tmp_path / "state"))
    files = files_of(later.capture())
    assert files["ema.safetensors"] == files["model.safetensors"]


def test_an_average_of_another_model_is_refused(tmp_path):
    """An average whose tensors do not fit the model raises ``StateError``."""
    trainable, other = prepared(model_of()), prepared(model_of(hidden_size=48))
    folder = write(trainable.capture(), tmp_path / "state")
    strange = write(other.capture(), tmp_path / "other")
    (folder / "ema.safetensors").write_bytes((strange / "ema.safetensors").read_bytes())
    with pytest.raises(StateError):
        trainable.restore(folder)


def test_adapters_are_averaged_alone(tmp_path):
    """With LoRA the file of the average has the form of the file of the adapters, and is restored like it."""

    def adapted():
        model = model_of()
        add_lora(model, LoraPlan(rank=4), seed=0)
        return prepared(model)

    original, restored = adapted(), adapted()
    train(original, (1, 2, 3))
    folder = write(original.capture(), tmp_path / "state")
    assert load_file(folder / "ema.safetensors").keys() == load_file(folder / "model.safetensors").keys()
    restored.restore(folder)
    assert files_of(restored.capture()) == files_of(original.capture())
