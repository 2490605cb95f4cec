"""The column of a reference model belongs to one model, precision and length of a row."""

from __future__ import annotations

import pytest

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.bootstrap.stages.build.reference_model import reference_column
from holdfast.configs.settings_layers import load_settings
from tests.support.decoder_shapes import LLAMA

CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
}


def key_of(factory, *settings, precision="fp32"):
    """Return the key of the column of a model that ``factory`` draws from one seed."""
    model = factory.build(vocabulary_size=97, end_of_text=96, seed=0)
    pairs = ["data.task=preference", "data.path=pairs.jsonl", "data.sequence_length=64", *settings]
    return reference_column(model, load_settings([], pairs, {}).settings, {"optimizer.precision": precision}).key


def llama(attention="sdpa", **more):
    return HuggingfaceModelFactory(config={**CONFIG, **more}, attention=attention)


def test_what_changes_no_log_probability_leaves_the_key():
    """Another implementation of attention and the use of a cache find the numbers that are stored."""
    assert key_of(llama()) == key_of(llama("eager")) == key_of(llama(use_cache=False))


@pytest.mark.parametrize("field", ["rope_parameters", "rms_norm_eps"])
def test_another_configuration_of_the_same_weights_is_another_model(field):
    """A field of the configuration that shapes no weight changes the log-probabilities, so also the key."""
    other = {"rope_parameters": {"rope_type": "default", "rope_theta": 20.0}, "rms_norm_eps": 1e-3}[field]
    assert key_of(llama()) != key_of(llama(**{field: other}))


def test_a_decoder_has_a_key_too():
    """The key depends on precision and length, also for the model that is built in."""
    decoder = DecoderModelFactory(config=LLAMA)
    others = key_of(decoder, precision="bf16"), key_of(decoder, "data.sequence_length=65")
    assert len({key_of(decoder), *others}) == 3
    assert key_of(decoder) == key_of(decoder)
