"""Adapters of low rank: what trains, what is saved, and what other tools make of it."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.shared.modeling.lora import LoraPlan, add_lora, merge_lora
from holdfast.adapters.shared.modeling.loss_selection import choose_loss
from holdfast.domain.errors import ConfigurationError, StateError
from holdfast.domain.training.text_generation import Sampling
from holdfast.ports.testing.optimizer import END_OF_TEXT, VOCABULARY_SIZE, packed_batch, take_step, write
from tests.support.decoder_shapes import LLAMA, logits_of, shaken

FACTORIES = {
    "llama": HuggingfaceModelFactory(config={"model_type": "llama", "tie_word_embeddings": True, **LLAMA}),
    "gpt2": HuggingfaceModelFactory(
        config={
            "model_type": "gpt2",
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
        }
    ),
    "decoder": DecoderModelFactory(config=LLAMA | {"attention_bias": True}),
}
ALL = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def build(name="llama", *, seed=0):
    return FACTORIES[name].build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=seed)


def adapted(name="llama", *, base_seed=0, seed=7, path=None, **plan):
    model = build(name, seed=base_seed)
    add_lora(model, LoraPlan(rank=4, **plan), seed=seed, path=path)
    return model


def prepare(model):
    return AccelerateOptimizer(device="cpu", precision="fp32", seed=1).prepare(model)


def train(trainable, steps):
    return [take_step(trainable, packed_batch(), step=step, rate=0.01)[0] for step in steps]


def trained(name="llama", *, steps=3, **options):
    model = adapted(name, **options)
    train(prepare(model), range(1, steps + 1))
    return model


def frozen_bytes(model):
    tensors = model.network.state_dict().items()
    return {name: tensor.numpy().tobytes() for name, tensor in tensors if ".lora_" not in name}


def logits(network):
    network.eval()
    return logits_of(network, packed_batch())


@pytest.mark.parametrize("quantize", ["none", "4bit"])
@pytest.mark.parametrize("name", ["llama", "decoder"])
def test_training_leaves_the_base_as_it_was(name, quantize):
    """After ten steps, an evaluation among them, the loss is lower and each byte that is no adapter's is the same."""
    model = adapted(name, quantize=quantize)
    before = frozen_bytes(model)
    trainable = prepare(model)
    losses = train(trainable, range(1, 6))
    trainable.evaluate(packed_batch())
    losses += train(trainable, range(6, 11))
    assert losses[-1] < losses[0] - 0.1
    assert frozen_bytes(model) == before


@pytest.mark.parametrize("quantize", ["none", "4bit"])
def test_new_adapters_change_nothing(quantize):
    """A model with adapters that have not trained gives the logits that it gives without them."""
    model, plain = adapted(quantize=quantize), build()
    if quantize == "4bit":
        add_lora(plain, LoraPlan(rank=1, quantize="4bit", target_modules=["q_proj"]), seed=0)
    torch.testing.assert_close(logits(model.network), logits(plain.network), rtol=0, atol=1e-6)


def test_only_adapters_are_optimized_and_saved(tmp_path):
    """Parameters of the optimizer and tensors of the checkpoint are those of adapters, and PEFT's file has no other."""
    write(prepare(adapted()).capture(), tmp_path / "state")
    groups = json.loads((tmp_path / "state/optimizer.json").read_text())["groups"]
    optimized = [name for group in groups for name in group["params"]]
    assert len(optimized) == 2 * 7 * LLAMA["num_hidden_layers"]
    assert all(".lora_" in name for name in optimized)
    saved = load_file(tmp_path / "state/adapter_model.safetensors")
    assert len(saved) == len(optimized)
    assert all(".lora_" in name for name in saved)
    assert load_file(tmp_path / "state/model.safetensors").keys() - saved.keys() == {"base_model.blake3"}


@pytest.mark.parametrize("quantize", ["none", "4bit"])
def test_a_resumed_run_is_the_same_bit_for_bit(quantize, tmp_path):
    """Four steps, with dropout, equal two steps, a checkpoint, a model built anew, and two more."""
    options = {"dropout": 0.2, "quantize": quantize}
    whole, first, second = (adapted(**options) for _ in range(3))
    train(prepare(whole), range(1, 5))
    half = prepare(first)
    train(half, [1, 2])
    write(half.capture(), tmp_path / "state")
    resumed = prepare(second)
    resumed.restore(tmp_path / "state")
    train(resumed, [3, 4])
    expected, found = (model.adapters.tensors(model.network) for model in (whole, second))
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert not torch.equal(first.adapters.tensors(first.network)[name := next(iter(found))], found[name])


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # what PEFT asks for
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_peft_loads_a_checkpoint(name, tmp_path):
    """PEFT puts the adapters of a checkpoint on the base model and gives the logits of the trained one."""
    model = trained(name)
    write(model.capture(), tmp_path / "state")
    base = build(name).network
    theirs = PeftModel.from_pretrained(base, tmp_path / "state")
    ours = logits(model.network)
    assert (ours - logits(build(name).network)).abs().max() > 1e-3
    torch.testing.assert_close(logits(theirs), ours, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "quantize"), [("llama", "none"), ("llama", "4bit"), ("gpt2", "none"), ("decoder", "none")]
)
def test_a_merged_model_loads_in_transformers(name, quantize, tmp_path):
    """The captured files of a merged model are a whole one: transformers loads it and its logits are the same."""
    model = trained(name, quantize=quantize)
    ours = logits(model.network)
    merge_lora(model)
    torch.testing.assert_close(logits(model.network), ours, rtol=0, atol=1e-5)
    write(model.capture(), tmp_path / "whole")
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert not any(report.values())
    torch.testing.assert_close(logits(theirs), ours, rtol=0, atol=1e-5)


def test_adapters_of_other_weights_are_refused(tmp_path):
    """A checkpoint is refused if the base weights are others by now, or if it holds a whole model."""
    write(prepare(adapted()).capture(), tmp_path / "state")
    with pytest.raises(StateError, match="belong to other base weights"):
        prepare(adapted(base_seed=1)).restore(tmp_path / "state")
    write(prepare(build()).capture(), tmp_path / "whole")
    with pytest.raises(StateError, match="holds no adapters"):
        prepare(adapted()).restore(tmp_path / "whole")


@pytest.mark.parametrize(
    ("name", "wanted", "expected"),
    [
        ("llama", None, ALL),
        ("decoder", None, ALL),
        ("gpt2", None, ["c_attn", "c_fc", "c_proj"]),
        ("llama", ["q_proj", "v_proj"], ["q_proj", "v_proj"]),
        ("llama", ["layers.1.mlp.up_proj"], ["model.layers.1.mlp.up_proj"]),
        ("llama", ["0.self_attn.q_proj", "k_proj"], None),
    ],
)
def test_targets_are_all_linear_layers_or_those_named(name, wanted, expected, tmp_path):
    """Auto adapts all linear layers but the head, ends of names those that they fit, and PEFT is told just these."""
    model = adapted(name, target_modules=wanted)
    write(model.capture(), tmp_path / "state")
    told = json.loads((tmp_path / "state/adapter_config.json").read_text())["target_modules"]
    layers = {key.split(".lora_")[0] for key in load_file(tmp_path / "state/adapter_model.safetensors")}
    assert not any("lm_head" in layer for layer in layers)
    if expected is None:
        told, expected = {f"base_model.model.{name}" for name in told}, layers
        assert len(layers) == 1 + LLAMA["num_hidden_layers"]
    assert told == expected
    assert type(model.network.get_output_embeddings()) is torch.nn.Linear


@pytest.mark.parametrize("unknown", ["x_proj", "lm_head", "embed_tokens", "proj"])
def test_a_target_that_is_no_linear_layer_is_refused(unknown):
    """The head, an embedding and half a name are no targets, and what could be one is said."""
    with pytest.raises(ConfigurationError, match=rf"has {unknown}, .*try .*q_proj"):
        adapted(target_modules=["q_proj", unknown])


def test_adapters_follow_from_the_seed():
    """Equal seeds draw equal adapters, another seed others, and the process's random state stays as it was."""
    state = torch.random.get_rng_state()
    first, second, other = (adapted(seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), state)
    tensors = [model.adapters.tensors(model.network) for model in (first, second, other)]
    assert all(torch.equal(tensors[0][name], tensors[1][name]) for name in tensors[0])
    drawn = [name for name in tensors[0] if ".lora_A" in name]
    assert not any(torch.equal(tensors[0][name], tensors[2][name]) for name in drawn)


def test_the_chunked_loss_stays():
    """Adapters replace layers, and the loss is still computed without all logits."""
    model = adapted()
    choose_loss(model)
    assert model.loss == "chunked"


def test_generation_takes_the_adapters():
    """Text is that of the merged model, also for an own decoder with its cache of keys and values."""
    model = adapted("decoder")
    shaken(model)
    before = model.generate([1, 2, 3], Sampling(8, 0.0), end_of_text=END_OF_TEXT)
    merge_lora(model)
    assert list(model.generate([1, 2, 3], Sampling(8, 0.0), end_of_text=END_OF_TEXT)) == list(before)


@pytest.mark.parametrize(
    ("missing", "quantize", "extra"),
    [
        ("peft", "none", r"holdfast-lm\[lora\]"),
        ("holdfast.adapters.shared.modeling.quantization", "4bit", r"holdfast-lm\[bnb\]"),
    ],
)
def test_a_missing_package_is_named(missing, quantize, extra, monkeypatch):
    """Without PEFT, or bitsandbytes for 4 bits, the extra to install is said."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigurationError, match=extra):
        adapted(quantize=quantize)


def test_layers_that_cannot_have_four_bits_are_refused():
    """GPT-2's layers are no Linear of torch, which bitsandbytes needs."""
    with pytest.raises(ConfigurationError, match="GPT2LMHeadModel has no layers"):
        adapted("gpt2", quantize="4bit")


def test_layers_of_four_bits_have_their_biases():
    """A quantized model with biases gives, within rounding, the logits of its weights turned back into fp32."""
    model = shaken(build("decoder"))
    unquantized = logits(model.network)
    add_lora(model, LoraPlan(rank=4, quantize="4bit"), seed=0)
    ours = logits(model.network)
    merge_lora(model)
    torch.testing.assert_close(logits(model.network), ours, rtol=1e-4, atol=1e-4)
    assert (ours - unquantized).abs().max() > 1e-2
