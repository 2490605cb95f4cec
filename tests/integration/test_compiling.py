from contextlib import closing

import pytest
import torch
from torch import nn

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.shared.device.openmp import torch_state_preserved
from holdfast.adapters.shared.modeling.torch_compile import CompiledLayers
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.text_generation import Sampling
from holdfast.ports.testing.optimizer import END_OF_TEXT, VOCABULARY_SIZE, packed_batch, write
from tests.support.decoder_shapes import LLAMA

# torch's own, when its compiler is imported and when it asks tensors for their gradients
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

STEPS = 5
HUGGINGFACE_LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
}


def build(kind, policy="none"):
    factory = (
        HuggingfaceModelFactory(config=HUGGINGFACE_LLAMA, gradient_checkpointing=policy)
        if kind == "huggingface"
        else DecoderModelFactory(config=LLAMA, gradient_checkpointing=policy)
    )
    return factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=0)


def prepare(model):
    return AccelerateOptimizer(device="cpu", precision="fp32").prepare(model)


def train(trainable, steps):
    batch, losses = packed_batch(), []
    for step in steps:
        with trainable.update(step=step, learning_rate=1e-2) as update:
            losses.append(float(update.accumulate(batch, weight=1 / batch.num_targets, last=True)) / batch.num_targets)
            update.apply()
    return losses


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["huggingface", "decoder"])
@pytest.mark.parametrize("policy", ["none", "full"])
def test_compiled_layers_train_as_they_did(kind, policy, tmp_path):
    """Losses equal those of eager layers within 1e-5, names too, and a checkpoint goes on without compiling."""
    plain = build(kind, policy)
    compiled = build(kind, policy)
    with torch_state_preserved(deterministic=True), closing(CompiledLayers(compiled.network, "default", "cpu")) as seen:
        assert list(compiled.state_dict()) == list(plain.state_dict())
        eager, trainable = prepare(plain), prepare(compiled)
        assert train(trainable, range(1, STEPS + 1)) == pytest.approx(train(eager, range(1, STEPS + 1)), abs=1e-5)
        assert seen.graphs == 1, "layers of one kind share their code"
        assert seen.recompiles == 0
        assert seen.seconds > 0
        folder = write(trainable.capture(), tmp_path / "state")
        following = train(trainable, [STEPS + 1])
        resumed = prepare(build(kind))
        resumed.restore(folder)
        assert train(resumed, [STEPS + 1]) == pytest.approx(following, abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_another_shape_is_counted():
    """A batch of fewer rows compiles again, which the count tells; evaluation and generation compile nothing."""
    model = build("decoder")
    with torch_state_preserved(deterministic=True), closing(CompiledLayers(model.network, "default", "cpu")) as seen:
        trainable = prepare(model)
        trainable.evaluate(packed_batch())
        trainable.generate([1, 2, 3], Sampling(max_new_tokens=2), end_of_text=END_OF_TEXT)
        assert seen.graphs == 0
        train(trainable, [1])
        before = seen.recompiles
        part = next(iter(packed_batch().split(2)))
        with trainable.update(step=2, learning_rate=0.0) as update:
            update.accumulate(part, weight=1.0, last=True)
        assert seen.recompiles > before


def test_an_unknown_mode_is_refused():
    """A mode that torch does not have is refused with those it has."""
    with pytest.raises(ConfigurationError, match="reduce-overhead"):
        CompiledLayers(build("decoder").network, "fastest", "cpu")


def test_a_network_without_layers_is_refused():
    """Where there is no list of layers there is nothing to compile, which is said."""
    with pytest.raises(ConfigurationError, match=r"Linear has no layers .* model\.compile=none"):
        CompiledLayers(nn.Linear(2, 2), "default", "cpu")


def test_a_missing_compiler_is_one_sentence(monkeypatch, tmp_path):
    """Without a C++ compiler on the path a CPU run is refused and told what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"needs a C\+\+ compiler"):
        CompiledLayers(build("decoder").network, "default", "cpu")


def test_forgotten_code_does_not_hinder_the_end():
    """Whoever resets torch's compiler within a run takes the counting away, and nothing else."""
    seen = CompiledLayers(build("decoder").network, "default", "cpu")
    torch.compiler.reset()
    seen.close()
    assert seen.graphs == 0


@pytest.mark.slow  # the import of torch's compiler alone takes seconds
def test_layers_that_are_not_trained_run_as_they_were():
    """In evaluation mode a compiled layer gives the very bits of the eager one, and compiles nothing."""
    model = build("decoder").eval()
    ids = torch.arange(12)[None]
    before = model.network(ids, ids).logits
    with closing(CompiledLayers(model.network, "default", "cpu")) as seen:
        assert torch.equal(model.network(ids, ids).logits, before)
        assert seen.graphs == 0
