"""Builds a model whose weights are deferred, one process a rank, and compares it with a whole model."""

from __future__ import annotations

import json
import os
import sys

import torch
from torch import distributed
from torch.distributed.tensor import DTensor

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.bootstrap.process.exit_codes import end_with
from tests.support.engine_ranks import GPT2, LENGTH, LLAMA, QWEN3, RANK, VOCABULARY, optimizer_of

# sizes that neither ranks nor groups of random numbers divide
WIDE = {name: value for name, value in LLAMA.items() if name != "model_type"} | {"max_position_embeddings": LENGTH}
SHAPES = {
    "plain": WIDE,
    "tied": WIDE | {"tie_word_embeddings": True, "attention_bias": True},
    "gpt2": WIDE | {"positions": "learned", "norm": "layernorm", "mlp_bias": True, "tie_word_embeddings": True},
    "large": WIDE | {"hidden_size": 512, "vocab_size": 2501},  # an embedding that is drawn in two parts
}


THEIRS = {"their llama": LLAMA | {"hidden_size": 512, "vocab_size": 2501}, "their qwen3": QWEN3, "their gpt2": GPT2}


def network_of(kind, *, deferred, engine="ddp"):
    if kind in THEIRS:
        factory = HuggingfaceModelFactory(config=THEIRS[kind])
    else:
        factory = DecoderModelFactory(config=SHAPES[kind])
    if deferred:
        factory.defer_weights()
    model = factory.build(vocabulary_size=VOCABULARY, end_of_text=VOCABULARY - 1, seed=3)
    if not deferred:
        return model.network
    assert all(parameter.is_meta for parameter in model.parameters()), "weights were drawn before they had a place"
    optimizer_of(engine)[0].prepare(model)
    return model.network


def differing(network, whole):
    """Return the names of the tensors of ``network`` that are not those of ``whole``, bit for bit."""
    own = {name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in state_of(network)}
    assert own, "a rank without weights would prove nothing"
    return [name for name, tensor in own.items() if not torch.equal(tensor, whole[name])]


def state_of(network):
    parameters = network.named_parameters(remove_duplicate=False)
    return [(name, tensor.detach()) for name, tensor in (*parameters, *network.named_buffers())]


def main(engine, kind):
    whole = dict(state_of(network_of(kind, deferred=False)))
    network = network_of(kind, deferred=True, engine=engine)
    embedding, head = network.get_input_embeddings(), network.get_output_embeddings()
    is_tied = embedding is not None and head is not None and embedding.weight is head.weight
    found = {"differing": differing(network, whole), "tied": is_tied}
    every = [None] * distributed.get_world_size() if distributed.is_initialized() else [found]
    if distributed.is_initialized():
        distributed.all_gather_object(every, found)
    if RANK == 0:
        sys.stdout.write("\n" + json.dumps(every) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    end_with(lambda: main(*sys.argv[1:]))
