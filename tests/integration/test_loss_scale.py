"""Training in fp16: what the scale of the loss does."""

import json

import pytest
import torch
from safetensors.torch import load_file

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.optimizer.engine import LOSS_SCALE_FILE, LossScale
from holdfast.domain.errors import NonFiniteGradients, StateError
from holdfast.ports.testing.optimizer import (
    END_OF_TEXT,
    VOCABULARY_SIZE,
    files_of,
    packed_batch,
    take_step,
    write,
)

TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_dropout": 0.5,
}


def prepare(precision="fp16"):
    model = HuggingfaceModelFactory(config=TINY).build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)
    return AccelerateOptimizer(device="cpu", precision=precision).prepare(model)


def train(trainable, *steps):
    return [take_step(trainable, packed_batch(seed=step), step=step, rate=0.01, rows=2) for step in steps]


def at_scale(folder, scale, *, good_steps=0):
    """Return a trainable after step 1 whose scale was planted."""
    before = prepare()
    train(before, 1)
    write(before.capture(), folder)
    (folder / LOSS_SCALE_FILE).write_text(json.dumps({"scale": scale, "good_steps": good_steps}))
    trainable = prepare()
    trainable.restore(folder)
    return trainable


def saved_scale(trainable):
    return json.loads(files_of(trainable.capture())[LOSS_SCALE_FILE])


def test_fp16_computes_in_fp16_and_keeps_full_weights(tmp_path):
    """The loss is that of half precision, while weights and what the optimizer keeps stay fp32."""
    losses = {}
    for precision in ("fp32", "bf16", "fp16"):
        trainable = prepare(precision)
        losses[precision] = train(trainable, 1)[0][0]
        folder = write(trainable.capture(), tmp_path / precision)
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert {tensor.dtype for tensor in load_file(folder / name).values()} == {torch.float32}
        assert trainable.hardware.precision == precision
    assert len(set(losses.values())) == 3
    assert abs(losses["fp16"] - losses["fp32"]) < abs(losses["bf16"] - losses["fp32"])


def test_a_step_that_overflows_is_taken_at_a_lower_scale(tmp_path):
    """A scale that is too large is halved until gradients are finite, and then the step is that of the right scale."""
    calm, huge = at_scale(tmp_path / "calm", 2.0**10), at_scale(tmp_path / "huge", 2.0**40, good_steps=7)
    expected, found = train(calm, 2), train(huge, 2)
    assert found[0][0] == expected[0][0]
    assert found[0][1] == pytest.approx(expected[0][1], rel=1e-2)
    assert saved_scale(calm) == {"scale": 2.0**10, "good_steps": 1}
    lowered = saved_scale(huge)
    assert 2.0**10 < lowered["scale"] < 2.0**40
    assert lowered["good_steps"] == 1
    settled = at_scale(tmp_path / "settled", lowered["scale"])
    train(settled, 2)
    assert files_of(settled.capture()) == files_of(huge.capture())  # as if the scale had been right from the start


def test_a_resumed_run_has_the_scale_of_the_one_that_went_on(tmp_path):
    """A run that is taken up behind an overflow, just before the scale grows, continues bit for bit."""
    original, restored = at_scale(tmp_path / "a", 2.0**40, good_steps=5), prepare()
    train(original, 2)
    folder = write(original.capture(), tmp_path / "b")
    saved = json.loads((folder / LOSS_SCALE_FILE).read_text())
    (folder / LOSS_SCALE_FILE).write_text(json.dumps(saved | {"good_steps": 1999}))
    for trainable in (original, restored):
        trainable.restore(folder)
        train(trainable, 3, 4)
    assert saved_scale(original)["good_steps"] == 1
    assert files_of(restored.capture()) == files_of(original.capture())


@pytest.mark.parametrize("saved", ["no json", "[]", '{"scale": 2}', '{"scale": null, "good_steps": 1}'])
def test_a_damaged_scale_is_refused(saved, tmp_path):
    """A scale that cannot be read raises ``StateError`` and changes nothing."""
    trainable = prepare()
    train(trainable, 1)
    folder = write(trainable.capture(), tmp_path / "a")
    (folder / LOSS_SCALE_FILE).write_text(saved)
    fresh = prepare()
    with pytest.raises(StateError, match=LOSS_SCALE_FILE):
        fresh.restore(folder)
    assert files_of(fresh.capture()) == files_of(prepare().capture())


def test_a_checkpoint_of_another_precision_is_taken_with_a_fresh_scale(tmp_path):
    """A run may go on in fp16 after steps in another precision, and the other way round."""
    folders = {}
    for precision in ("bf16", "fp16"):
        trainable = prepare(precision)
        train(trainable, 1)
        folders[precision] = write(trainable.capture(), tmp_path / precision)
    half, other = prepare("fp16"), prepare("bf16")
    half.restore(folders["bf16"])
    other.restore(folders["fp16"])
    assert saved_scale(half) == {"scale": 2.0**16, "good_steps": 0}
    assert LOSS_SCALE_FILE not in files_of(other.capture())


def test_gradients_that_no_scale_cures_end_the_run():
    """A batch that overflows at a scale of 1 raises ``NonFiniteGradients``; scale and weights are those before it."""
    trainable = prepare()
    train(trainable, 1)
    before = files_of(trainable.capture())
    with trainable.update(step=2, learning_rate=0.01) as update:
        update.accumulate(packed_batch(), weight=float("inf"), last=True)
        with pytest.raises(NonFiniteGradients):
            update.apply()
    assert files_of(trainable.capture()) == before


def test_the_scale_doubles_after_2000_steps():
    """It grows where steps are calm, and what was lowered for a step that was left is forgotten."""
    scale = LossScale(8.0)
    for _ in range(2000):
        assert scale.value == 8.0
        scale.settle()
    assert scale.value == 16.0
    assert scale.lower()
    scale.forget()
    assert scale.value == 16.0


def test_the_scale_is_not_lowered_below_one():
    """From 1 on there is no other try."""
    scale = LossScale(4.0)
    assert [scale.lower() for _ in range(4)] == [True, True, False, False]
    assert scale.value == 1.0
