"""The ends of replies in the settings that other programs generate by."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, LlamaConfig, LlamaForCausalLM

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.shared.modeling.causal_language_model import new_tokens
from holdfast.adapters.shared.modeling.generation_settings import (
    end_generation_at,
    generation_ends,
    generation_parts,
    read_generation_settings,
    sample_settings,
)
from holdfast.domain.training.text_generation import Sampling

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


@pytest.mark.parametrize("has_file", [False, True])
@pytest.mark.parametrize("factory", [HuggingfaceModelFactory, DecoderModelFactory])
def test_the_ends_of_config_json_count_too(factory, base, has_file):
    """Ends that only config.json lists are among those of the model, beside a file of settings or without one."""
    described = base / "config.json"
    described.write_text(json.dumps(json.loads(described.read_text()) | {"eos_token_id": [3, 31]}))
    if not has_file:
        (base / "generation_config.json").unlink()
    network = built(factory(path=str(base)))
    end_generation_at(network, [3, 7], is_special=lambda number: number in (30, 31))
    assert generation_ends(network) == [3, 7, *([30] if has_file else []), 31]


ODD = {
    "penalty": {"repetition_penalty": 1.9},
    "min_p": {"do_sample": True, "min_p": 0.3, "temperature": 0.6},
    "ngram": {"no_repeat_ngram_size": 1},
    "beams": {"num_beams": 3, "length_penalty": 2.0},
    "suppressed": {"suppress_tokens": list(range(20))},
    "length": {"min_new_tokens": 7, "max_length": 5},
}


@pytest.mark.parametrize("name", ODD)
def test_temperature_0_takes_the_likeliest_token(name, base):
    """Whatever settings come with a model, each id is the argmax of the logits after those before it."""
    (base / "generation_config.json").write_text(json.dumps(ODD[name]))
    factory = HuggingfaceModelFactory(path=str(base))
    model, ids = factory.build(vocabulary_size=40, end_of_text=3, seed=0), [1, 2]
    before = model.network.generation_config.to_dict()
    found = model.generate(ids, Sampling(12, 0.0), end_of_text=-1)
    for _ in range(12):
        place = torch.arange(len(ids))[None]
        logits = model.network.eval()(input_ids=torch.tensor([ids]), position_ids=place, use_cache=False).logits
        ids.append(int(logits[0, -1].argmax()))
    assert list(found) == ids[2:]
    assert model.network.generation_config.to_dict() == before


FAMILIES = {
    "gpt2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 40},
    "mistral": {**TINY, "num_key_value_heads": 2, "sliding_window": 4},
    "qwen3": {**TINY, "head_dim": 8, "num_key_value_heads": 1},
    "gemma2": {**TINY, "head_dim": 8, "num_key_value_heads": 1, "num_hidden_layers": 2, "sliding_window": 4},
    "mixtral": {**TINY, "num_key_value_heads": 1, "num_local_experts": 4},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("family", FAMILIES)
def test_temperature_0_is_the_greedy_text_of_transformers(family, name, tmp_path):
    """Of several families, with each odd setting, the ids are those of a plain ``generate`` without the settings."""
    config = AutoConfig.for_model(family, **FAMILIES[family], bos_token_id=1, eos_token_id=3, pad_token_id=None)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    plain = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    (tmp_path / "generation_config.json").write_text(json.dumps(ODD[name]))
    model = HuggingfaceModelFactory(path=str(tmp_path)).build(vocabulary_size=40, end_of_text=3, seed=0)
    for start in range(5, 11):
        ids = torch.tensor([[1, start, 2 * start]])
        expected = plain.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20)
        found = model.generate(ids[0].tolist(), Sampling(20, 0.0), end_of_text=3)
        assert list(found) == [token for token in expected[0, 3:].tolist() if token != 3]


def test_samples_obey_the_settings_that_are_about_samples(base):
    """At other temperatures penalties and the like apply, as in transformers; beams do not."""
    fields = {"suppress_tokens": list(range(20)), "num_beams": 3, "repetition_penalty": 1.0}
    (base / "generation_config.json").write_text(json.dumps(fields))
    model = HuggingfaceModelFactory(path=str(base)).build(vocabulary_size=40, end_of_text=3, seed=0)
    assert sample_settings(model.network) == {"suppress_tokens": fields["suppress_tokens"]}
    assert min(model.generate([1, 2], Sampling(20, 1.0), end_of_text=-1)) >= 20


def test_a_folder_without_settings_has_none(base):
    """Settings are read from a folder that has them; without the file there are none."""
    assert isinstance(read_generation_settings(str(base)), GenerationConfig)
    (base / "generation_config.json").unlink()
    assert read_generation_settings(str(base)) is None


@pytest.mark.parametrize("temperature", [1e-300, 1e-30, 1e-12])
def test_the_smallest_temperatures_take_the_likeliest_token(temperature):
    """A temperature by which no logit can be divided samples as any that is nearly zero, and does not fail."""
    network = built(HuggingfaceModelFactory(config={"model_type": "llama", **TINY}))

    def ids_at(temperature):
        sampling = Sampling(max_new_tokens=8, temperature=temperature)
        return list(new_tokens(network, [5, 6], sampling, 3, lambda _: None))

    assert ids_at(temperature) == ids_at(0.0)
