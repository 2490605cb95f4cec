"""Models and optimizers that are restored from a checkpoint while it is verified."""

from __future__ import annotations

import random

import pytest
import torch

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.shared.modeling.lora import LoraPlan, add_lora
from holdfast.adapters.state_store import verified_read
from holdfast.adapters.state_store import verified_read as hashed_file
from holdfast.adapters.state_store.disk import DiskStateStore
from holdfast.domain.checkpoints.retention import Retention
from holdfast.domain.errors import StateError
from holdfast.domain.training.step_outcome import Progress
from holdfast.ports.state_store import Snapshot
from holdfast.ports.testing.optimizer import END_OF_TEXT, VOCABULARY_SIZE, files_of, packed_batch, take_step
from tests.support.decoder_shapes import LLAMA

FACTORIES = {
    "llama": HuggingfaceModelFactory(config={"model_type": "llama", "tie_word_embeddings": True, **LLAMA}),
    "decoder": DecoderModelFactory(config=LLAMA | {"attention_bias": True}),
}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Read each file in many pieces."""
    monkeypatch.setattr(hashed_file, "_PIECE", 8192)
    monkeypatch.setattr(verified_read, "_LARGE", 1)


def prepare(name, *, with_lora=False, precision="fp32"):
    model = FACTORIES[name].build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)
    if with_lora:
        add_lora(model, LoraPlan(rank=4), seed=7)
    return AccelerateOptimizer(device="cpu", precision=precision, seed=1).prepare(model)


def saved_twice(root, trainable):
    """Save the state behind two steps and behind three; return the files of both."""
    store, files = DiskStateStore(root, Retention(2)), []
    for step in (1, 2, 3):
        take_step(trainable, packed_batch(), step=step, rate=0.01)
        if step > 1:
            store.save(Snapshot(Progress(step=step), "final", trainable.capture()))
            files.append(files_of(trainable.capture()))
    return files


def restored(root, trainable):
    """Return the step that ``trainable`` was restored to."""
    store = DiskStateStore(root, Retention(2))
    info = store.restore(lambda folder, open_file: trainable.restore(folder, open_file=open_file)).info
    return info and info.progress.step


@pytest.mark.parametrize("with_lora", [False, True])
@pytest.mark.parametrize("name", ["llama", "decoder"])
def test_what_is_restored_is_what_was_saved(tmp_path, name, with_lora):
    """Weights, in whatever form they are saved, and the optimizer's state come back to the bit."""
    _, newest = saved_twice(tmp_path, prepare(name, with_lora=with_lora))
    fresh = prepare(name, with_lora=with_lora)
    assert files_of(fresh.capture()) != newest
    assert restored(tmp_path, fresh) == 3
    assert files_of(fresh.capture()) == newest


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("name", ["llama", "decoder"])
def test_wherever_a_bit_is_flipped_the_older_state_is_restored(tmp_path, name, file):
    """Of damage in the header, in a length, in a number nothing is left: the state is the older one to the bit."""
    older, _ = saved_twice(tmp_path, prepare(name))
    path = tmp_path / "checkpoints/checkpoint-3" / file
    before, chance = path.read_bytes(), random.Random(5)
    fresh = prepare(name)
    places = [0, 3, 7, 8, 9, 60, *(chance.randrange(len(before)) for _ in range(10)), len(before) - 1]
    for place in places:
        damaged = bytearray(before)
        damaged[place] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        assert restored(tmp_path, fresh) == 2, place
        assert files_of(fresh.capture()) == older, place
        (aside,) = (tmp_path / "quarantine").iterdir()
        aside.rename(path.parent)


def test_a_checkpoint_of_another_model_is_refused_and_stays(tmp_path):
    """It verifies, so it is not set aside, and nothing of it is taken over."""
    saved_twice(tmp_path, prepare("llama"))
    other = prepare("llama", with_lora=True)
    before = files_of(other.capture())
    with pytest.raises(StateError):
        restored(tmp_path, other)
    assert files_of(other.capture()) == before
    assert list((tmp_path / "quarantine").iterdir()) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("is_alone", [True, False])
def test_an_optimizer_state_that_is_not_finite_is_not_trained_on(tmp_path, value, is_alone):
    """Such a checkpoint is set aside like a damaged one though each byte is as saved, and the older one restored."""
    trainable, store = prepare("llama"), DiskStateStore(tmp_path, Retention(2))
    take_step(trainable, packed_batch(), step=1, rate=0.01)
    if not is_alone:
        store.save(Snapshot(Progress(step=1), "final", trainable.capture()))
    older = files_of(trainable.capture())
    parts = trainable.capture()
    state = next(part for part in parts if part.name == "optimizer.safetensors")
    max(state.tensors.values(), key=torch.numel).view(-1)[-1] = value
    store.save(Snapshot(Progress(step=2), "final", parts))
    fresh = prepare("llama")
    assert restored(tmp_path, fresh) == (None if is_alone else 1)
    if not is_alone:
        assert files_of(fresh.capture()) == older
    assert [path.name for path in (tmp_path / "quarantine").iterdir()] == ["checkpoint-2.not-finite"]
