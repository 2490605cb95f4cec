import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Starcoder2Config

from holdfast.adapters.shared.decoder.huggingface_config import check_exportable, shape_of
from holdfast.domain.errors import ConfigurationError
from tests.support.decoder_shapes import (
    END_OF_TEXT,
    GPT2,
    LLAMA,
    SHAPES,
    VOCABULARY_SIZE,
    build,
    documents_of,
    export,
    logits_of,
    rows_of,
    shaken,
)

CLASSES = {"llama": "LlamaForCausalLM", "gpt2": "GPT2LMHeadModel", "starcoder2": "Starcoder2ForCausalLM"}
SIZES = {"vocab_size": VOCABULARY_SIZE, "bos_token_id": END_OF_TEXT, "eos_token_id": END_OF_TEXT}
LLAMA_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
} | SIZES
GPT2_SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64} | SIZES
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
THEIRS = {
    "llama": LlamaConfig(**LLAMA_SIZES),
    "llama-tied": LlamaConfig(**LLAMA_SIZES, tie_word_embeddings=True, head_dim=6),
    "llama-biased": LlamaConfig(**LLAMA_SIZES, attention_bias=True, mlp_bias=True, hidden_act="gelu"),
    "llama3-scaling": LlamaConfig(**LLAMA_SIZES, rope_parameters=LLAMA3),
    "linear-scaling": LlamaConfig(**LLAMA_SIZES, rope_parameters={"rope_type": "linear", "factor": 3.0}),
    "gpt2": GPT2Config(**GPT2_SIZES),
    "gpt2-untied": GPT2Config(**GPT2_SIZES, tie_word_embeddings=False, n_inner=40, activation_function="relu"),
    "starcoder2": Starcoder2Config(**LLAMA_SIZES, tie_word_embeddings=False),
}
BATCH = rows_of(documents_of(20, 3, 9, 1, 31, 14), 39)
each_shape = pytest.mark.parametrize("name", [name for name in SHAPES if name != "own"])


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def theirs_of(config):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return shaken(AutoModelForCausalLM.from_config(config).eval())


@pytest.mark.parametrize("name", THEIRS)
def test_a_decoder_computes_what_the_hugging_face_model_does(name, tmp_path):
    """Given the weights of a Hugging Face model, a decoder gives its logits, packed or not, and names itself so."""
    theirs = theirs_of(THEIRS[name])
    theirs.save_pretrained(tmp_path)
    ours = build(path=str(tmp_path), seed=3).network.eval()
    expected = logits_of(theirs, BATCH)
    assert expected.std() > 0.2
    torch.testing.assert_close(logits_of(ours, BATCH), expected, rtol=0, atol=1e-5)
    one = rows_of(documents_of(39), 39)
    torch.testing.assert_close(logits_of(ours, one), logits_of(theirs, one), rtol=0, atol=1e-5)
    assert ours.config.model_type == theirs.config.model_type


@each_shape
def test_hugging_face_loads_an_exported_decoder(name, tmp_path):
    """An exported folder loads whole in transformers, as the class of its shape, with the decoder's logits."""
    ours = shaken(build(SHAPES[name])).network.eval()
    folder = export(ours, tmp_path / "model")
    theirs, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert type(theirs).__name__ == CLASSES.get(name.split("-")[0], "LlamaForCausalLM")
    assert not any(report.values())
    torch.testing.assert_close(logits_of(theirs, BATCH), logits_of(ours, BATCH), rtol=0, atol=1e-5)
    theirs.save_pretrained(tmp_path / "theirs")
    saved, again = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "theirs"))
    assert saved.keys() == again.keys()
    assert all(torch.equal(saved[key], again[key]) for key in saved)


@pytest.mark.parametrize("name", SHAPES)
def test_an_exported_decoder_comes_back(name, tmp_path):
    """A folder that a decoder wrote gives the same shape, dropout and, bit for bit, weights again."""
    dropout = {"attention": 0.1} if "llama" in name or "linear" in name else {"attention": 0.1, "residual": 0.2}
    ours = shaken(build(SHAPES[name], dropout=dropout)).network
    again = build(path=str(export(ours, tmp_path / "model")), seed=9).network
    assert again.config == ours.config
    state = again.state_dict()
    assert all(torch.equal(state[key], tensor) for key, tensor in ours.state_dict().items())


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_weights_in_several_files_are_read(name, tmp_path):
    """A folder whose weights lie in shards gives the same model as one with a single file."""
    theirs = theirs_of(THEIRS[name])
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = build(path=str(tmp_path)).network.eval()
    torch.testing.assert_close(logits_of(ours, BATCH), logits_of(theirs, BATCH), rtol=0, atol=1e-5)


def test_the_first_published_gpt2_files_are_read(tmp_path):
    """Files without the prefix of the base model, and with the masks that old versions saved, are read as well."""
    ours = shaken(build(GPT2)).network
    folder = export(ours, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old |= {"h.0.attn.bias": torch.ones(1, 1, 64, 64), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(logits_of(build(path=str(folder)).network, BATCH), logits_of(ours, BATCH))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "sampling",
    [{}, {"do_sample": True}, {"do_sample": True, "temperature": 0.5, "top_k": 7, "top_p": 0.8}],
    ids=["greedy", "sampled", "cut"],
)
def test_a_decoder_generates_what_the_hugging_face_model_does(name, sampling, tmp_path):
    """Greedy or drawn from the same state of the generator, the new tokens are those of transformers."""
    theirs = theirs_of(THEIRS[name])
    theirs.save_pretrained(tmp_path)
    ours = build(path=str(tmp_path)).network.eval()
    prompt = torch.from_numpy(documents_of(9, 9)[0]).expand(3, -1)
    options = {"max_new_tokens": 25, "eos_token_id": 5, "pad_token_id": 5, "attention_mask": torch.ones_like(prompt)}
    if "temperature" not in sampling and sampling:
        sampling = sampling | {"top_k": 0, "top_p": 1.0, "temperature": 1.0}
    generated = []
    for network in (theirs, ours):
        with torch.random.fork_rng():
            torch.manual_seed(1)
            generated.append(network.generate(prompt, **options, **sampling))
    assert torch.equal(*generated)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"norm": "layernorm"}, "LlamaForCausalLM, needs model.norm=rmsnorm"),
        ({"positions": "learned"}, "LlamaForCausalLM, needs model.positions=rope"),
        (GPT2 | {"attention_bias": False}, "GPT2LMHeadModel, needs model.attention_bias=true"),
        (GPT2 | {"num_key_value_heads": 2}, "GPT2LMHeadModel, needs model.num_key_value_heads=4"),
        ({"hidden_size": 30, "head_dim": 8}, "model.head_dim=hidden_size / num_attention_heads"),
    ],
)
def test_what_hugging_face_cannot_express_is_said(change, named):
    """A shape that no class has trains as our own type, and asking for its export names the settings in the way."""
    config = LLAMA | change
    network = build(config).network
    assert json.loads(network.config.to_json_string())["model_type"] == "holdfast_decoder"
    with pytest.raises(ConfigurationError, match=named):
        check_exportable(network.config.shape)


@each_shape
def test_what_hugging_face_expresses_is_exportable(name):
    """A shape that a class has may be exported."""
    shape = shape_of(SHAPES[name] | {"vocab_size": 8})
    check_exportable(shape)
    assert shape.vocabulary_size == 8


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(**GPT2_SIZES, scale_attn_by_inverse_layer_idx=True),
        GPT2Config(**GPT2_SIZES, activation_function="tanh"),
        Starcoder2Config(**LLAMA_SIZES, sliding_window=16),
        LlamaConfig(**LLAMA_SIZES, rope_parameters={"rope_type": "dynamic", "factor": 2.0}),
    ],
    ids=["scaled", "activation", "window", "dynamic"],
)
def test_a_folder_that_computes_something_else_is_refused(config, tmp_path):
    """Weights of a model that a decoder would compute differently are refused, and not loaded as if they were its."""
    theirs_of(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigurationError, match="decoder"):
        build(path=str(tmp_path))
