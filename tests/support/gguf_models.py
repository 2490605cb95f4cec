"""Small models of each type that a GGUF file can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from holdfast.adapters.shared.model_export.gguf_file import GgufDescription, GgufModel
from holdfast.adapters.shared.model_export.gguf_vocabulary import read_vocabulary
from tests.support.small_tokenizers import small_tokenizer, write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer

SIZE = 400
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
CONFIGS = {
    "llama": LLAMA,
    "llama-tied-biased": LLAMA | {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "llama3-scaling": LLAMA | {"rope_parameters": _LLAMA3, "head_dim": 24},
    "linear-scaling": LLAMA | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": None},
    "qwen2": LLAMA | {"model_type": "qwen2"},
    "qwen3": LLAMA | {"model_type": "qwen3", "head_dim": 32},
    "starcoder2": LLAMA | {"model_type": "starcoder2", "sliding_window": None},
    "gpt2": _GPT2,
    "gpt2-untied": _GPT2 | {"tie_word_embeddings": False, "n_inner": 96},
}


def network_of(fields: dict[str, Any]) -> Any:
    """Return a model whose weights are numbers that f16 and bf16 represent, and so large that each shows."""
    config = AutoConfig.for_model(**fields, vocab_size=SIZE)
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).bfloat16().half().float())
    return network


def model_of(network: Any, folder: Path, core: Tokenizer | None = None, **fields: object) -> GgufModel:
    """Return ``network`` with the tokenizer ``core``, one like GPT-2's if None, which is written into ``folder``."""
    write_tokenizer(core or small_tokenizer("gpt-2"), folder, **fields)
    vocabulary = read_vocabulary(folder, size=SIZE)
    tensors: dict[int, tuple[str, torch.Tensor]] = {}
    for name, each in network.state_dict(keep_vars=True).items():
        tensors.setdefault(id(each), (name, each))  # a tied one has its first name
    weights = {name: each.detach() for name, each in tensors.values()}
    return GgufModel(network.config, weights, vocabulary, GgufDescription("small", "apache-2.0", "{{ messages }}"))
