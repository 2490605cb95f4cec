"""The ends of replies in the settings that other programs generate by."""

from __future__ import annotations

import json

import pytest
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.shared.modeling.generation_settings import (
    end_generation_at,
    generation_ends,
    generation_parts,
    read_generation_settings,
)

TINY = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
CREATIVE = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "eos_token_id": [3, 30]}


@pytest.fixture
def base(tmp_path):
    """Return a folder with a model and settings of its own."""
    LlamaForCausalLM(LlamaConfig(**TINY, eos_token_id=3)).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps(CREATIVE))
    return tmp_path


def built(factory, *, awaits=False):
    if awaits:
        factory.await_weights()
    return factory.build(vocabulary_size=40, end_of_text=3, seed=0).network


def fields_of(network):
    (part,) = generation_parts(network)
    return json.loads(b"".join(part.chunks()))


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("factory", [HuggingfaceModelFactory, DecoderModelFactory])
def test_the_other_settings_of_the_base_stay(base, factory, awaits):
    """Ends come first, then the special ones of the base; temperature and the like are those of the base."""
    network = built(factory(path=str(base)), awaits=awaits)
    end_generation_at(network, [3, 7], is_special=lambda number: number == 30)
    assert generation_ends(network) == [3, 7, 30]
    found = fields_of(network)
    assert {name: found[name] for name in CREATIVE} == CREATIVE | {"eos_token_id": [3, 7, 30]}
    end_generation_at(network, [3, 7], is_special=lambda _: False)
    assert generation_ends(network) == [3, 7]


def test_an_unchanged_end_changes_nothing():
    """A model whose only end is end-of-text has the settings that its factory gave it, a decoder none."""
    llama = built(HuggingfaceModelFactory(config={"model_type": "llama", **TINY}))
    before = fields_of(llama)
    end_generation_at(llama, [3], is_special=lambda _: True)
    assert fields_of(llama) == before
    assert before["eos_token_id"] == 3
    decoder = built(DecoderModelFactory(config=TINY))
    end_generation_at(decoder, [3], is_special=lambda _: True)
    assert generation_parts(decoder) == ()


@pytest.mark.parametrize("factory", [HuggingfaceModelFactory, DecoderModelFactory])
def test_a_new_model_gets_the_ends(factory):
    """A model from scratch gets settings that name each end and are not replaced by those of config.json."""
    kind = {"model_type": "llama"} if factory is HuggingfaceModelFactory else {}
    network = built(factory(config={**kind, **TINY}))
    end_generation_at(network, [3, 7], is_special=lambda _: True)
    assert fields_of(network)["eos_token_id"] == [3, 7]
    assert not fields_of(network).get("_from_model_config")


def test_a_folder_without_settings_has_none(base):
    """Settings are read from a folder that has them; without the file there are none."""
    assert isinstance(read_generation_settings(str(base)), GenerationConfig)
    (base / "generation_config.json").unlink()
    assert read_generation_settings(str(base)) is None
