"""Model folders whose files and config.json disagree: both kinds of model read what transformers reads, and say so."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, LlamaForCausalLM

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.shared.tensor_state.sharded_tensors import tensors_in
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.testing.optimizer import END_OF_TEXT, VOCABULARY_SIZE, write

SIZES = {"vocab_size": VOCABULARY_SIZE, "bos_token_id": END_OF_TEXT, "eos_token_id": END_OF_TEXT}
CONFIGS = {
    "llama": LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        **SIZES,
    ),
    "gpt2": GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **SIZES),
}
FACTORIES = {"huggingface": HuggingfaceModelFactory, "decoder": DecoderModelFactory}
HEAD = "lm_head.weight"
each_kind = pytest.mark.parametrize("kind", FACTORIES)
each_model = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def build(kind, folder, *, awaits=False):
    factory = FACTORIES[kind](path=str(folder))
    if awaits:
        factory.await_weights()
    return factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=1)


def folder_of(folder, name, head=None):
    """Save a tied model with the output matrix ``head`` beside its embeddings."""
    torch.manual_seed(0)
    network = AutoModelForCausalLM.from_config(CONFIGS[name])
    network.save_pretrained(folder)
    if head is not None:
        tensors = load_file(folder / "model.safetensors")
        matrix = network.get_output_embeddings().weight.detach()
        save_file(tensors | {HEAD: head(matrix)}, folder / "model.safetensors", {"format": "pt"})
    return folder


def other(matrix):
    return torch.roll(matrix, 3, 0) * 2


def logits_of(network):
    ids = torch.arange(12)[None]
    with torch.no_grad():
        return network.eval()(input_ids=ids, position_ids=ids, use_cache=False).logits


def assert_same(network, folder):
    theirs, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    torch.testing.assert_close(logits_of(network), logits_of(theirs), rtol=0, atol=1e-5)


def restored(kind, folder):
    """Return the model of a checkpoint as ``evaluate`` and ``export`` open it."""
    model = build(kind, folder, awaits=True)
    with tensors_in([folder / "model.safetensors"]) as saved:
        model.loading(saved)()
    return model


@each_kind
@each_model
def test_an_output_matrix_of_its_own_is_not_tied(kind, name, tmp_path):
    """A head that differs from the embeddings is used in spite of config.json, trained, captured and read again."""
    model = build(kind, folder_of(tmp_path / "base", name, other))
    assert_same(model.network, tmp_path / "base")
    assert not model.network.config.tie_word_embeddings
    with torch.no_grad():
        model.network.get_output_embeddings().weight *= 1.5
    write(model.capture(), tmp_path / "trained")
    assert_same(model.network, tmp_path / "trained")
    again = restored(kind, tmp_path / "trained")
    torch.testing.assert_close(logits_of(again.network), logits_of(model.network), rtol=0, atol=0)


@each_kind
def test_a_person_is_told_that_the_configuration_is_wrong(kind, tmp_path):
    """The note names the tied weight."""
    [note] = build(kind, folder_of(tmp_path, "llama", other)).notes
    assert note.startswith(f"config.json ties {HEAD}")


@each_kind
@each_model
def test_an_output_matrix_that_is_the_embeddings_stays_tied(kind, name, tmp_path):
    """A file that holds the tied matrix twice gives a tied model, and nothing is said."""
    model = build(kind, folder_of(tmp_path, name, torch.clone))
    assert model.network.config.tie_word_embeddings
    assert model.network.get_output_embeddings().weight is model.network.get_input_embeddings().weight
    assert not model.notes


def test_a_checkpoint_of_an_earlier_version_is_read(tmp_path):
    """A checkpoint that holds both matrices, but whose configuration ties them, gives what was trained."""
    model = build("huggingface", folder_of(tmp_path / "base", "llama", other))
    write(model.capture(), tmp_path / "trained")
    described = tmp_path / "trained" / "config.json"
    described.write_text(json.dumps(json.loads(described.read_text()) | {"tie_word_embeddings": True}))
    again = restored("huggingface", tmp_path / "trained")
    assert torch.equal(logits_of(again.network), logits_of(model.network))
    write(again.capture(), tmp_path / "exported")
    assert_same(model.network, tmp_path / "exported")


@each_kind
def test_of_weights_that_are_there_twice_those_of_transformers_are_read(kind, tmp_path):
    """Beside an index, model.safetensors is read by both kinds of model, and a note says so."""
    folder_of(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: tensor * 0 for name, tensor in tensors.items()}, tmp_path / "part.safetensors", {"format": "pt"})
    index = {"weight_map": dict.fromkeys(tensors, "part.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    model = build(kind, tmp_path)
    assert_same(model.network, tmp_path)
    assert logits_of(model.network).std() > 0
    assert [note for note in model.notes if "model.safetensors is read" in note] == [*model.notes]


def test_weights_that_no_model_has_are_counted(tmp_path, monkeypatch):
    """Tensors that transformers drops, with or without a report, are named once; buffers of old files are none."""
    monkeypatch.setattr(LlamaForCausalLM, "_keys_to_ignore_on_load_unexpected", [r"mtp.*", "attn.bias"])
    folder_of(tmp_path, "llama")
    tensors = load_file(tmp_path / "model.safetensors")
    more = dict.fromkeys(("mtp.0.weight", "mtp.1.weight", "strange.weight", "model.attn.bias"), torch.ones(2))
    save_file(tensors | {name: tensor.clone() for name, tensor in more.items()}, tmp_path / "model.safetensors")
    [note] = build("huggingface", tmp_path).notes
    assert note.startswith("3 tensors of the files are not loaded")
    assert note.endswith("mtp.0.weight, mtp.1.weight, strange.weight")


@each_kind
def test_adapters_without_a_model_are_refused_with_the_remedy(kind, tmp_path):
    """A folder of PEFT is no model: the message names the base and how both are joined."""
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))
    with pytest.raises(ConfigurationError, match=r"holds adapters for org/base.*merge_and_unload"):
        build(kind, tmp_path)
