"""Training in 8 bits, emulated where the hardware has none."""

import sys

import pytest
import torch
from safetensors.torch import load_file

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer, use_float8
from holdfast.adapters.shared.device.device_selection import choose_precision
from holdfast.domain.errors import ConfigurationError
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
}
# torchao tells of kernels that it cannot load and of what torch deprecates
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "FutureWarning")]


def build(**changes):
    factory = HuggingfaceModelFactory(config=TINY | changes)
    return factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)


def prepare(precision):
    return AccelerateOptimizer(device="cpu", precision=precision).prepare(build())


def prepare_emulated():
    """Return a trainable in 8 bits for any hardware: what ``fp8`` prepares, but for the emulation of its products."""
    model = build()
    use_float8(model, sequence_length=16, emulate=True)
    return AccelerateOptimizer(device="cpu", precision="bf16").prepare(model)


def train(trainable, *steps):
    return [take_step(trainable, packed_batch(seed=step), step=step, rate=0.01) for step in steps]


def test_layers_multiply_in_8_bits_and_keep_their_names():
    """All linear layers of a model but the head are converted, and parameters are the very ones from before."""
    pytest.importorskip("torchao")
    model = build()
    before = dict(model.network.state_dict(keep_vars=True))
    use_float8(model, sequence_length=16, emulate=True)
    after = dict(model.network.state_dict(keep_vars=True))
    assert list(after) == list(before)
    assert all(after[name] is tensor for name, tensor in before.items())
    converted = [name for name, module in model.network.named_modules() if type(module).__name__ == "Float8Linear"]
    assert len(converted) == 2 * 7
    assert type(model.network.get_output_embeddings()) is torch.nn.Linear


def test_training_in_8_bits_learns_and_saves_what_bf16_does(tmp_path):
    """Losses are near those of fp32 and not the same; files have the names, shapes and formats of bf16."""
    pytest.importorskip("torchao")
    rounded, exact, half = prepare_emulated(), prepare("fp32"), prepare("bf16")
    found, expected = ([loss for loss, _ in train(each, 1, 1, 1, 1)] for each in (rounded, exact))
    assert found != expected
    assert found == pytest.approx(expected, rel=0.02)
    assert found[-1] < found[0]
    folders = [write(each.capture(), tmp_path / name) for each, name in ((rounded, "fp8"), (half, "bf16"))]
    assert len({frozenset(path.name for path in folder.iterdir()) for folder in folders}) == 1
    for name in ("model.safetensors", "optimizer.safetensors"):
        kinds = [{key: (t.shape, t.dtype) for key, t in load_file(folder / name).items()} for folder in folders]
        assert kinds[0] == kinds[1]
    assert rounded.hardware.num_parameters == half.hardware.num_parameters


def test_a_run_in_8_bits_goes_on_bit_for_bit(tmp_path):
    """A restored run takes the steps of the one that went on; bf16 takes its checkpoint, too."""
    pytest.importorskip("torchao")
    original, restored, half = prepare_emulated(), prepare_emulated(), prepare("bf16")
    train(original, 1)
    folder = write(original.capture(), tmp_path / "a")
    restored.restore(folder)
    half.restore(folder)
    assert files_of(half.capture()) == files_of(original.capture())
    train(original, 2)
    train(restored, 2)
    assert files_of(restored.capture()) == files_of(original.capture())


def test_layers_that_are_too_small_are_left_alone():
    """Where the hardware counts, only large layers are converted, and a model without any is refused."""
    pytest.importorskip("torchao")
    with pytest.raises(ConfigurationError, match="no linear layer of LlamaForCausalLM is large enough"):
        use_float8(build(), sequence_length=16, emulate=False)
    model = build(intermediate_size=1040, num_hidden_layers=1)
    use_float8(model, sequence_length=16, emulate=False)
    converted = {
        name.split(".")[-1] for name, module in model.network.named_modules() if type(module).__name__ == "Float8Linear"
    }
    assert converted == {"gate_proj", "up_proj"}


def test_without_the_package_it_is_refused(monkeypatch):
    """Without torchao the refusal says what to install, and what to use in its place."""
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(ConfigurationError, match=r"pip install .*fp8.*optimizer\.precision=bf16"):
        prepare("fp8")


def test_with_adapters_it_is_refused():
    """Frozen layers would be multiplied for gradients that nobody wants."""
    model = build()
    model.adapters = object()
    with pytest.raises(ConfigurationError, match=r"model\.lora.*optimizer\.precision=bf16"):
        use_float8(model, sequence_length=16, emulate=True)


@pytest.mark.parametrize("capability", [None, (8, 0), (8, 6)])
def test_a_device_without_it_is_refused(capability, monkeypatch):
    """A CPU or an older GPU is told what fp8 takes and what to set in its place."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA A100")
    with pytest.raises(ConfigurationError, match=r"8\.9.*this is (cpu|NVIDIA A100): set optimizer\.precision=auto"):
        choose_precision("fp8", "cpu" if capability is None else "cuda")


@pytest.mark.parametrize("capability", [(8, 9), (9, 0), (10, 0)])
def test_a_gpu_with_it_may_use_it(capability, monkeypatch):
    """From Ada on it is taken as configured."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert choose_precision("fp8", "cuda") == ("fp8", "configured")
