from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MistralConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from holdfast.adapters.shared.model_export.gguf_file import architecture_of, extra_tensors, in_file_form
from holdfast.domain.errors import ConfigurationError

SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def rotated(vector, angles, *, is_interleaved):
    """Return ``vector`` (size,) turned by ``angles`` (size / 2,), in pairs of neighbours or of halves."""
    first, second = (vector[0::2], vector[1::2]) if is_interleaved else vector.chunk(2)
    turned = first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()
    return torch.stack(turned, dim=-1).flatten() if is_interleaved else torch.cat(turned)


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight"])
def test_neighbours_turn_as_halves_did(name):
    """Queries and keys in the order of the file, turned in neighbouring pairs, have the products they had in halves."""
    config = LlamaConfig(**SMALL)
    heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(heads * 8, 32, generator=generator)
    hidden, angles = torch.randn(2, 32, generator=generator), torch.randn(2, 4, generator=generator)
    moved = in_file_form(architecture_of(config), config, name, weight)
    products = []
    for matrix, is_interleaved in ((weight, False), (moved, True)):
        vectors = [(matrix @ each).reshape(heads, 8)[-1] for each in hidden]
        turned = [rotated(*pair, is_interleaved=is_interleaved) for pair in zip(vectors, angles, strict=True)]
        products.append(turned[0] @ turned[1])
    assert not torch.equal(weight, moved)
    torch.testing.assert_close(products[0], products[1])


def test_scaled_frequencies_are_those_of_transformers():
    """The factors in the file divide the plain frequencies to those that transformers computes for llama3."""
    config = LlamaConfig(**SMALL, rope_parameters=LLAMA3)
    factors = extra_tensors(config)["rope_freqs.weight"]
    plain = 10_000.0 ** (-torch.arange(0, 8, 2) / 8)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    torch.testing.assert_close(plain / factors, expected)
    assert extra_tensors(LlamaConfig(**SMALL)) == {}


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (LlamaConfig(**SMALL, hidden_act="gelu"), "hidden_act is gelu"),
        (MistralConfig(**SMALL, sliding_window=32), "sliding_window is 32"),
        (GPT2Config(activation_function="relu"), "activation_function is relu"),
        (GPT2Config(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx is True"),
    ],
)
def test_what_llama_cpp_does_not_compute_is_refused(config, complaint):
    """A configuration that llama.cpp would compute in another way is refused, and the field is named."""
    with pytest.raises(ConfigurationError, match=complaint):
        architecture_of(config)


def test_an_unknown_type_is_refused():
    """A type of model without an architecture in llama.cpp is refused with the types that have one."""
    config = LlamaConfig(**SMALL)
    config.model_type = "strange"
    with pytest.raises(ConfigurationError, match=r"type strange cannot .* llama, mistral"):
        architecture_of(config)


def test_scaling_that_no_file_describes_is_refused():
    """Rotary frequencies of another kind than default, linear and llama3 are refused."""
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    config = LlamaConfig(**SMALL, rope_parameters=rope)
    with pytest.raises(ConfigurationError, match="rope_parameters are dynamic"):
        architecture_of(config).fields(config)
