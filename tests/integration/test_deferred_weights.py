"""Weights that are drawn or read after a model was divided have the values of a model built as a whole."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.accelerate import AccelerateOptimizer
from holdfast.adapters.shared.modeling import deferred_weights
from holdfast.adapters.shared.modeling.deferred_weights import InitialWeight, draw_weights, place_weights
from holdfast.adapters.shared.tensor_state.file_parts import write_parts
from holdfast.domain.errors import ConfigurationError
from tests.integration.test_engines_agree import said_by
from tests.support.decoder_shapes import END_OF_TEXT, SHAPES, VOCABULARY_SIZE
from tests.support.mixtures import MIXTRAL

AT_ONCE = 64
SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
THEIRS = {
    "llama": SMALL | {"model_type": "llama", "attention_bias": True},
    "mistral": SMALL | {"model_type": "mistral"},
    "qwen2": SMALL | {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": SMALL | {"model_type": "qwen3", "head_dim": 32},
    "gpt2": {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
}


def built(config, *, deferred, seed=1, path=None):
    factory = DecoderModelFactory(config=None if path else config, path=path)
    if deferred:
        factory.defer_weights()
    return factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=seed)


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.network.state_dict().items()}


@pytest.mark.parametrize("size", [1, 15, 16, 17, 64, 79, 80, 81, 128, 143, 1000])
def test_values_drawn_in_parts_are_those_drawn_at_once(size, monkeypatch):
    """Normal and uniform numbers that are drawn part by part equal those of one draw, and so do the numbers after."""
    monkeypatch.setattr(deferred_weights, "_AT_ONCE", AT_ONCE)
    for draw in (torch.Tensor.normal_, torch.Tensor.uniform_):
        at_once, in_parts = (torch.Generator().manual_seed(5) for _ in range(2))
        expected = [draw(torch.empty(size), generator=at_once) for _ in range(3)]
        weights = [InitialWeight(name, size, partial(draw, generator=in_parts)) for name in "abc"]
        # fp64 is another dtype than that of the draws, so values come in parts; nothing takes those of b
        taken = {name: torch.empty(size, dtype=torch.float64) for name in "ac"}
        draw_weights(weights, taken)
        assert torch.equal(taken["a"].float(), expected[0]), draw
        assert torch.equal(taken["c"].float(), expected[2]), draw


@pytest.mark.parametrize("name", SHAPES)
def test_deferred_weights_are_those_of_a_whole_model(name):
    """In every shape a model whose weights are placed later equals the model that was built with them."""
    model = built(SHAPES[name], deferred=True)
    assert all(parameter.is_meta for parameter in model.parameters()), "weights were drawn before they had a place"
    whole = built(SHAPES[name], deferred=False)
    assert (model.loss, model.isolates_documents) == (whole.loss, whole.isolates_documents)
    place_weights(model, torch.device("cpu"))
    expected = state_of(whole)
    found = state_of(model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", SHAPES)
def test_deferred_weights_are_read_from_a_folder(name, tmp_path):
    """A folder's weights are read as the optimizer prepares the model, converted if their form differs."""
    source = built(SHAPES[name], deferred=False, seed=4)
    write_parts(source.capture(), tmp_path)
    model = built(None, deferred=True, path=str(tmp_path))
    AccelerateOptimizer(device="cpu", precision="fp32").prepare(model)
    expected, found = state_of(source), state_of(model)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_damaged_file_is_named_when_it_is_read(tmp_path):
    """A folder whose weights are cut short is refused with its name when the weights are placed."""
    write_parts(built(SHAPES["llama"], deferred=False).capture(), tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    model = built(None, deferred=True, path=str(tmp_path))
    with pytest.raises(ConfigurationError, match=tmp_path.name):
        AccelerateOptimizer(device="cpu", precision="fp32").prepare(model)


def theirs(config, *, deferred, path=None):
    factory = HuggingfaceModelFactory(config=None if path else config, path=path)
    if deferred:
        factory.defer_weights()
    return factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=2)


def tensors_of(model):
    """Return all tensors, those that no checkpoint has among them."""
    return {**dict(model.network.named_parameters()), **dict(model.network.named_buffers())}


@pytest.mark.parametrize("name", THEIRS)
def test_draws_of_transformers_are_repeated_exactly(name):
    """A model of transformers whose weights are placed later equals the one that transformers draws, bit for bit."""
    before = torch.get_rng_state()
    model, whole = (theirs(THEIRS[name], deferred=deferred) for deferred in (True, False))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.is_meta for parameter in model.parameters()), "weights were drawn before they had a place"
    assert (model.loss, model.isolates_documents) == (whole.loss, whole.isolates_documents)
    place_weights(model, torch.device("cpu"))
    expected, found = tensors_of(whole), tensors_of(model)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("name", THEIRS)
def test_weights_of_transformers_are_read_from_a_folder(name, tmp_path):
    """The weights of a local folder come into memory when the model is prepared, and are those that were saved."""
    source = theirs(THEIRS[name], deferred=False)
    write_parts(source.capture(), tmp_path)
    model = theirs(None, deferred=True, path=str(tmp_path))
    assert all(parameter.is_meta for parameter in model.parameters()), "the folder was read before there was a place"
    AccelerateOptimizer(device="cpu", precision="fp32").prepare(model)
    expected, found = tensors_of(source), tensors_of(model)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_model_whose_layers_may_differ_is_built_whole():
    """A mixture of experts, whose balancing loss is checked with its weights, is not deferred."""
    model = theirs(MIXTRAL, deferred=True)
    assert model.deferred is None
    assert not any(parameter.is_meta for parameter in model.parameters())


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("engine", "kind", "num_ranks"),
    [
        ("fsdp2", "large", 2),
        ("fsdp2", "gpt2", 2),
        ("ddp+tensor=2", "tied", 2),
        ("ddp+pipeline=2", "plain", 2),
        ("fsdp2+context=2", "plain", 2),
        ("ddp", "tied", 2),
        ("fsdp2", "their llama", 2),
        ("ddp+tensor=2", "their qwen3", 2),
        ("fsdp2+replicate=2", "large", 4),
        ("fsdp2+tensor=2", "tied", 4),
    ],
)
def test_ranks_draw_the_weights_of_one_process(engine, kind, num_ranks):
    """However ranks divide a new model, its weights are bit for bit those that one process draws."""
    found = said_by("deferred_ranks.py", num_ranks, engine, kind)
    assert len(found) == num_ranks
    for of_rank in found:
        assert of_rank == {"differing": [], "tied": kind in {"tied", "gpt2", "their qwen3"}}
