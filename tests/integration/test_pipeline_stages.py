"""Models that a pipeline cannot divide are refused in one sentence."""

from __future__ import annotations

import pytest

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.shared.modeling.tensor_parallel import check_stages
from holdfast.domain.errors import ConfigurationError

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def network_of(factory, **config):
    return factory(config=SHAPE | config).build(vocabulary_size=97, end_of_text=96, seed=0).network


def test_as_many_stages_as_layers_are_accepted():
    """A decoder of two layers can be divided into two stages."""
    network = network_of(DecoderModelFactory)
    check_stages(network, 2, "1f1b")
    with pytest.raises(ConfigurationError):
        check_stages(network, 3, "1f1b")


def test_more_stages_than_layers_are_refused():
    """The sentence names both numbers."""
    with pytest.raises(ConfigurationError, match="needs 4 stages, and the model has only 2 layers"):
        check_stages(network_of(DecoderModelFactory), 4, "interleaved")


def test_tied_embeddings_are_refused():
    """An output matrix that is the embedding would be on two ranks."""
    with pytest.raises(ConfigurationError, match="tie_word_embeddings=false"):
        check_stages(network_of(DecoderModelFactory, tie_word_embeddings=True), 2, "1f1b")


def test_a_model_of_transformers_is_refused():
    """The sentence names the class and the kind of model that can be divided."""
    with pytest.raises(ConfigurationError, match="LlamaForCausalLM cannot be divided into stages"):
        check_stages(network_of(HuggingfaceModelFactory, model_type="llama"), 2, "1f1b")
