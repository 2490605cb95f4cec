"""Small decoders, and what their tests do with them."""

import numpy as np
import torch
from safetensors.torch import save_file

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.domain.data.packing import ConcatPacking, place_rows
from holdfast.domain.data.row_index import read_rows

VOCABULARY_SIZE = 97
END_OF_TEXT = 96

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
PLAIN = LLAMA | {"norm": "layernorm", "norm_epsilon": 1e-5, "gated": False, "activation": "gelu_tanh"}
BIASES = {"attention_bias": True, "mlp_bias": True}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}
GPT2 = PLAIN | BIASES | {"positions": "learned", "num_key_value_heads": 4, "tie_word_embeddings": True}
SHAPES = {
    "llama": LLAMA,
    "llama-tied-biased": LLAMA | BIASES | {"tie_word_embeddings": True, "num_key_value_heads": 1},
    "llama3-scaling": LLAMA | {"rope_scaling": LLAMA3, "rope_theta": 500.0, "head_dim": 6, "activation": "gelu"},
    "linear-scaling": LLAMA | {"rope_scaling": {"kind": "linear", "factor": 2.0}, "norm_epsilon": 1e-3},
    "gpt2": GPT2,
    "gpt2-untied-relu": GPT2 | {"tie_word_embeddings": False, "activation": "relu", "intermediate_size": 40},
    "starcoder2": PLAIN | BIASES,
    "own": GPT2 | {"gated": True, "norm": "rmsnorm", "num_key_value_heads": 2, "mlp_bias": False},
}


def build(config=None, *, seed=0, vocabulary_size=VOCABULARY_SIZE, **options):
    factory = DecoderModelFactory(config=config, **options)
    return factory.build(vocabulary_size=vocabulary_size, end_of_text=END_OF_TEXT, seed=seed)


def shaken(model, *, seed=0):
    """Return ``model`` with weights so large that every part of it shows in the logits."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model


def rows_of(documents, length):
    return read_rows(place_rows(documents, ConcatPacking(length)), length)


def documents_of(*lengths):
    generator = np.random.default_rng(5)
    return [generator.integers(0, END_OF_TEXT, length) for length in lengths]


def logits_of(network, batch, **options):
    with torch.no_grad():
        return network(
            input_ids=torch.from_numpy(batch.input_ids),
            position_ids=torch.from_numpy(batch.position_ids),
            use_cache=False,
            **options,
        ).logits


def loss_of(model, batch):
    return model(
        input_ids=torch.from_numpy(batch.input_ids),
        position_ids=torch.from_numpy(batch.position_ids),
        loss_mask=torch.from_numpy(batch.loss_mask),
    )


def export(network, folder):
    """Write ``network`` as a model folder, and return this."""
    tensors = dict(network.state_dict())
    if network.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    folder.mkdir()
    save_file(network.to_huggingface(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(network.config.to_json_string())
    return folder
