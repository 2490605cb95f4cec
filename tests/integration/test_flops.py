"""FLOPs of a token against torch's counter, over the architectures that are counted."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.optimizer.flops import COUNTED, flops_per_token
from holdfast.adapters.shared.modeling.lora import LoraPlan, add_lora
from tests.support.decoder_shapes import LLAMA, VOCABULARY_SIZE, build

# Sizes of a small model by the names that configurations have for them; a head is not the width by the number of heads.
SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim"), 48),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "dff", "ffn_hidden_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "attention_heads"), 4),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("moe_num_shared_experts", "n_shared_experts", "num_shared_experts"), 1),
    **dict.fromkeys(("moe_intermediate_size", "moe_shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size"), 40),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "bos_token_id"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "sliding_window"), 512),
    "vocab_size": 96,
    "num_key_value_heads": 2,
    "head_dim": 20,
    "rotary_dim": 8,
    "kv_channels": 12,
    "eos_token_id": 2,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 10,
    "num_key_value_heads": 4,
    "head_dim": 8,
}
EVEN = {"head_dim": None, "num_key_value_heads": 4}
OWN = {
    "falcon": EVEN,
    "helium": EVEN | {"head_dim": 12},
    "nemotron": {"num_key_value_heads": 2},
    "stablelm": EVEN | {"partial_rotary_factor": 0.5},
}
USUAL = ("gpt2", "gemma2", "mixtral", "qwen3")


def config_of(kind, **more):
    """Return a small configuration of the type ``kind``, with those sizes whose names its default knows."""
    config_class = CONFIG_MAPPING[kind]
    default = config_class()
    sizes = SIZES | (LATENT if getattr(default, "kv_lora_rank", None) else {})
    known = {name: size for name, size in sizes.items() if getattr(default, name, None) is not None}
    chosen = known | {"pad_token_id": 0} | OWN.get(kind, {}) | more
    return config_class(**{name: size for name, size in chosen.items() if size is not None})


def built(config):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager")


def measured(network, length):
    """Return the FLOPs of a token, forward and backward, that torch counts in a row of ``length``."""
    ids = torch.randint(3, 90, (1, length))
    with FlopCounterMode(display=False) as counter:
        network(input_ids=ids, use_cache=False).logits.logsumexp(-1).sum().backward()
    return counter.get_total_flops() / length


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "kind", [kind if kind in USUAL else pytest.param(kind, marks=pytest.mark.slow) for kind in sorted(COUNTED)]
)
def test_flops_are_those_that_torch_counts(kind):
    """In a short and a longer row the figure is within 3 % of what a forward and a backward pass compute."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = built(config_of(kind))
    for length in (32, 256):
        assert flops_per_token(network, length) == pytest.approx(measured(network, length), rel=0.03), length


def test_frozen_weights_have_no_gradient_to_compute():
    """With adapters only those have gradients of weights; the first layer's own inputs need none, which is little."""
    factory = HuggingfaceModelFactory(config=config_of("qwen3", num_hidden_layers=12).to_dict(), attention="eager")
    model = factory.build(vocabulary_size=96, end_of_text=2, seed=0)
    whole = flops_per_token(model.network, 32)
    add_lora(model, LoraPlan(rank=4), seed=0)
    assert flops_per_token(model.network, 32) == pytest.approx(measured(model.network, 32), rel=0.03)
    assert flops_per_token(model.network, 32) < 0.9 * whole


def test_packed_weights_count_as_what_they_stand_for():
    """Weights of 4 bits are multiplied as those of full precision are."""
    models = [
        HuggingfaceModelFactory(config=config_of("llama", hidden_size=64, head_dim=16).to_dict()).build(
            vocabulary_size=96, end_of_text=2, seed=0
        )
        for _ in range(2)
    ]
    for model, quantize in zip(models, ("none", "4bit"), strict=True):
        add_lora(model, LoraPlan(rank=4, quantize=quantize), seed=0)
    assert flops_per_token(models[0].network, 32) == flops_per_token(models[1].network, 32)


def test_a_window_bounds_the_keys():
    """Layers with a sliding window attend to its keys only, and the others to the row."""
    network = built(config_of("gemma2", sliding_window=16))
    a_key = 12 * 4 * 20  # of one layer: heads of 20 numbers, products of keys and of values
    assert network.config.layer_types.count("sliding_attention") == 2
    assert flops_per_token(network, 64) - flops_per_token(network, 32) == 2 * 32 * a_key
    assert flops_per_token(network, 16) - flops_per_token(network, 8) == 4 * 8 * a_key


def test_the_decoder_counts_as_the_same_model_of_transformers():
    """Our decoder and a Llama of the same shape have the same figure, heads of any size included."""
    shape = LLAMA | {"head_dim": 6}
    theirs = built(LlamaConfig(**shape, vocab_size=VOCABULARY_SIZE))
    assert flops_per_token(build(shape).network, 32) == flops_per_token(theirs, 32)


@pytest.mark.parametrize(
    "config",
    [
        config_of("mamba"),
        config_of("qwen3", layer_types=["full_attention", "linear_attention"] * 2),
        config_of("bert", is_decoder=True),
    ],
    ids=["state space", "layers of another kind", "not compared"],
)
def test_what_is_not_known_has_no_figure(config):
    """An architecture whose arithmetic was compared with nothing has no figure rather than a wrong one."""
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config)
    assert flops_per_token(network, 32) is None
