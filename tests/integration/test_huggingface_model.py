import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub.errors import StrictDataclassClassValidationError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory, check_numbers
from holdfast.domain.data.packing import ConcatPacking, place_rows
from holdfast.domain.data.row_index import read_rows
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.text_generation import Sampling
from holdfast.ports.testing.optimizer import END_OF_TEXT, VOCABULARY_SIZE, files_of, packed_batch, write

LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
CONFIGS = [LLAMA, GPT2, LLAMA | {"tie_word_embeddings": True}]
each_config = pytest.mark.parametrize("config", CONFIGS, ids=["llama", "gpt2", "tied-llama"])


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def build(*, vocabulary_size=VOCABULARY_SIZE, **options):
    return HuggingfaceModelFactory(**options).build(vocabulary_size=vocabulary_size, end_of_text=END_OF_TEXT, seed=0)


@pytest.mark.parametrize("path", ["company-bas", "./company-bas", "models/company-bas"])
def test_a_misspelt_folder_is_guessed(path, tmp_path, monkeypatch):
    """A path without a folder, also one that could be a name on the hub, names the folder beside it that is like it."""
    monkeypatch.chdir(tmp_path)
    near = Path(path).with_name("company-base")
    near.mkdir(parents=True)
    with pytest.raises(ConfigurationError, match=f"model {path} .*did you mean the folder {near}\\?"):
        build(path=path)


def documents_of(*lengths):
    generator = np.random.default_rng(5)
    return [generator.integers(0, END_OF_TEXT, length) for length in lengths]


def loss_of(model, batch):
    return model(
        input_ids=torch.from_numpy(batch.input_ids),
        position_ids=torch.from_numpy(batch.position_ids),
        loss_mask=torch.from_numpy(batch.loss_mask),
    )


def logits_of(network, batch):
    with torch.no_grad():
        return network(
            input_ids=torch.from_numpy(batch.input_ids),
            position_ids=torch.from_numpy(batch.position_ids),
            use_cache=False,
        ).logits


def captured(model, folder):
    return write(model.capture(), folder)


def rows_of(documents, length):
    """Return ``documents``, one after the other, as rows of ``length`` tokens."""
    return read_rows(place_rows(documents, ConcatPacking(length)), length)


@each_config
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("is_training", [True, False])
def test_packed_documents_do_not_see_each_other(config, attention, is_training):
    """A packed row's logits, loss and gradients are those of its documents alone."""
    documents = documents_of(7, 12, 2, 21, 1, 5)
    model = build(config=config, attention=attention).train(is_training)
    packed = rows_of(documents, 48)
    alone = [rows_of([document], len(document)) for document in documents]
    expected = torch.cat([logits_of(model.network, batch)[0] for batch in alone])
    torch.testing.assert_close(logits_of(model.network, packed), expected[None], rtol=0, atol=1e-5)
    gradients = []
    for batches in ([packed], alone):
        model.zero_grad()
        loss = sum(loss_of(model, batch) for batch in batches)
        loss.backward()
        gradients.append((loss.detach(), [parameter.grad.clone() for parameter in model.parameters()]))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-5, atol=1e-4)


@each_config
def test_a_document_s_tokens_see_those_before_them(config):
    """The isolation above is that of documents: within one, a token changes what comes after it and nothing before."""
    model = build(config=config)
    batch = rows_of(documents_of(10, 10), 20)
    before = logits_of(model.network, batch)[0]
    batch.input_ids[0, 12] ^= 1
    changed = (logits_of(model.network, batch)[0] - before).abs().amax(dim=1) > 1e-6
    assert changed.tolist() == [False] * 12 + [True] * 8


@each_config
def test_the_loss_is_that_of_the_marked_targets(config):
    """The loss is the sum, over marked tokens, of minus the log-probability given the token before."""
    model = build(config=config)
    batch = packed_batch()
    log_probabilities = logits_of(model.network, batch).log_softmax(dim=-1)
    rows, columns = np.nonzero(batch.loss_mask)
    expected = -log_probabilities[rows, columns - 1, batch.input_ids[rows, columns]].sum()
    torch.testing.assert_close(loss_of(model, batch).detach(), expected)


@each_config
def test_hugging_face_loads_what_was_captured(config, tmp_path):
    """A captured folder is a Hugging Face model as it is, with the very same logits and dtype."""
    model = build(config=config)
    folder = captured(model, tmp_path / "model")
    network = AutoModelForCausalLM.from_pretrained(folder)
    batch = packed_batch()
    assert torch.equal(logits_of(network, batch), logits_of(model.network.eval(), batch))
    assert AutoConfig.from_pretrained(folder).architectures == [type(network).__name__]
    assert network.config.eos_token_id == network.generation_config.eos_token_id == END_OF_TEXT


@pytest.mark.parametrize(("config", "is_tied"), [(LLAMA, False), (LLAMA | {"tie_word_embeddings": True}, True)])
def test_tied_weights_are_stored_once(config, is_tied, tmp_path):
    """A matrix that embeds and predicts is one tensor in the file, under the name that Hugging Face gives it."""
    model = build(config=config)
    folder = captured(model, tmp_path / "model")
    names = set(load_file(folder / "model.safetensors"))
    model.network.save_pretrained(tmp_path / "theirs")
    assert names == set(load_file(tmp_path / "theirs" / "model.safetensors"))
    assert ("lm_head.weight" in names) == (not is_tied)


@each_config
def test_pretrained_weights_are_loaded(config, tmp_path):
    """A folder's weights come back bit for bit, whatever the seed, and are captured as the same files again."""
    model = build(config=config)
    folder = captured(model, tmp_path / "model")
    factory = HuggingfaceModelFactory(path=str(folder))
    again = factory.build(vocabulary_size=VOCABULARY_SIZE, end_of_text=END_OF_TEXT, seed=99)
    assert again.training
    assert files_of(again.capture())["model.safetensors"] == files_of(model.capture())["model.safetensors"]


def test_a_folder_whose_positions_have_two_values_is_refused(tmp_path):
    """Who changes positions in config.json under one of their two names is told."""
    folder = captured(build(config=LLAMA), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 5.0}))
    with pytest.raises(ConfigurationError, match="other rotary positions in rope_theta than in rope_parameters"):
        build(path=str(folder))


def test_the_usual_numbers_of_each_type_can_be_trained():
    """No type of transformers has defaults that are refused, those whose layers differ included."""
    checked, refused = 0, {}
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        with contextlib.suppress(StrictDataclassClassValidationError):  # a type without defaults
            config = CONFIG_MAPPING[kind]()
            checked += 1
            try:
                check_numbers(config)
            except (ValueError, AttributeError, RuntimeError) as error:
                refused[kind] = error
    assert refused == {}
    assert checked >= 120


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("num_hidden_layers", -1, "at least one layer"),
        ("num_hidden_layers", 0, "at least one layer"),
        ("attention_dropout", 2**40, "attention_dropout is 1099511627776: a probability"),
        ("attention_dropout", -0.5, "attention_dropout is -0.5: a probability"),
        ("model_type", [], "cannot be built"),
    ],
)
def test_numbers_that_cannot_be_trained_are_refused(tmp_path, field, value, told):
    """A folder without layers, with an impossible dropout or without a type is refused before the first step."""
    folder = captured(build(config=LLAMA), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(ConfigurationError, match=told):
        build(path=str(folder))


def test_a_folder_s_configuration_can_be_trained_from_scratch(tmp_path):
    """Without its weights a folder describes a new model, drawn by the seed, as large as the vocabulary."""
    model = build(config=LLAMA)
    folder = captured(model, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    fresh = build(path=str(folder), pretrained=False, vocabulary_size=300)
    assert fresh.network.get_input_embeddings().num_embeddings == 300
    assert fresh.network.config.hidden_size == LLAMA["hidden_size"]


def test_half_precision_weights_are_trained_in_full(tmp_path):
    """Weights that are stored in bfloat16 are loaded as fp32, value by value."""
    folder = captured(build(config=LLAMA), tmp_path / "model")
    halves = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    state = build(path=str(folder)).network.state_dict()
    assert all(torch.equal(state[name], tensor.float()) for name, tensor in halves.items())


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "no-such-model"},
        {"model_type": "t5"},
        {"hidden_size": 32},
        LLAMA | {"num_attention_heads": 5},
        LLAMA | {"num_attention_heads": 0},
        LLAMA | {"num_key_value_heads": 3},
        LLAMA | {"hidden_size": "large"},
        LLAMA | {"hidden_act": "no-such-activation"},
    ],
)
def test_a_configuration_that_cannot_be_built_is_refused(config):
    """Whatever is wrong with a configuration, a person reads one line about it, and never a library's own error."""
    with pytest.raises(ConfigurationError) as raised:
        build(config=config)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_a_padding_id_of_another_vocabulary_does_no_harm():
    """A new model has no padding id: torch would refuse it outside the vocabulary and never train it inside."""
    for padding in (50_256, 3):
        model = build(config=LLAMA | {"pad_token_id": padding})
        loss_of(model, rows_of([np.array([3, 3, 3, 3])], 4)).backward()
        assert model.network.get_input_embeddings().weight.grad[3].abs().sum() > 0


def test_unknown_attention_is_refused():
    """An attention implementation that is not there is named."""
    with pytest.raises(ConfigurationError, match="no-such-attention"):
        build(config=LLAMA, attention="no-such-attention")


@pytest.mark.parametrize("name", ["no/such-model", "/no/such/folder"])
def test_a_model_that_is_not_there_is_refused(name):
    """A path or name that leads nowhere is named in one line."""
    with pytest.raises(ConfigurationError, match=name):
        build(path=name)


def damage(folder, how):
    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    if how == "missing":
        save_file({name: tensors[name] for name in tensors if "norm" not in name}, weights, metadata={"format": "pt"})
    elif how == "shape":
        save_file(tensors | {"model.norm.weight": torch.zeros(3)}, weights, metadata={"format": "pt"})
    elif how == "integers":
        whole = {name: tensor.view(torch.int32) for name, tensor in tensors.items() if name == "model.norm.weight"}
        save_file(tensors | whole, weights, metadata={"format": "pt"})
    elif how == "garbage":
        weights.write_bytes(b"no tensors at all")
    elif how == "configuration":
        (folder / "config.json").write_text("{")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("missing", r"lack \d+ of"),
        ("shape", r"model.norm.weight is \(3,\) in the weights and \(\d+,\) by config.json"),
        ("integers", "model.norm.weight is of the type int32 in the model's weights, which is for whole numbers"),
        *[(each, "") for each in ("garbage", "configuration")],
    ],
)
def test_damaged_weights_are_refused(how, told, tmp_path):
    """A folder that lacks a tensor or has one of another shape is not filled up with random numbers."""
    folder = captured(build(config=LLAMA), tmp_path / "model")
    damage(folder, how)
    with pytest.raises(ConfigurationError, match=told):
        build(path=str(folder))


class Trap:
    """Runs code when it is unpickled."""

    def __init__(self, sentinel):
        self.sentinel = sentinel

    def __reduce__(self):
        return (open, (str(self.sentinel), "w"))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.bin", "model.pt"])
def test_pickled_weights_are_never_opened(name, tmp_path):
    """A folder whose weights are a pickle is refused, and nothing in it runs."""
    folder = captured(build(config=LLAMA), tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"trap": Trap(tmp_path / "sentinel")}, folder / name)
    with pytest.raises(ConfigurationError, match="safetensors"):
        build(path=str(folder))
    assert not (tmp_path / "sentinel").exists()


def test_code_in_a_model_folder_is_never_run(tmp_path):
    """A folder that brings its own model class is refused, and its code does not run."""
    folder = captured(build(config=LLAMA), tmp_path / "model")
    sentinel = tmp_path / "sentinel"
    (folder / "modeling_trap.py").write_text(f"open({str(sentinel)!r}, 'w')\n")
    config = {
        "model_type": "trap",
        "auto_map": {"AutoConfig": "modeling_trap.A", "AutoModelForCausalLM": "modeling_trap.B"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigurationError):
        build(path=str(folder))
    assert not sentinel.exists()


@each_config
def test_rows_longer_than_the_model_s_positions_are_refused(config):
    """A sequence length beyond the model's positions is refused before training, one equal to them is not."""
    build(config=config, sequence_length=64)
    with pytest.raises(ConfigurationError, match=r"65.*64 positions"):
        build(config=config, sequence_length=65)


def test_a_tokenizer_larger_than_loaded_weights_is_refused(tmp_path):
    """Weights that embed fewer ids than the tokenizer has are refused, ones that embed more are not."""
    folder = captured(build(config=LLAMA), tmp_path / "model")
    build(path=str(folder), vocabulary_size=200)
    with pytest.raises(ConfigurationError, match="258"):
        build(path=str(folder), vocabulary_size=258)


def test_a_row_that_crosses_documents_in_training_learns_nothing_across():
    """A document that is cut goes on as a document of its own: its first token has no context and is no target."""
    batch = rows_of([np.arange(20)], 8)
    model = build(config=LLAMA)
    logits = logits_of(model.network, batch)
    alone = logits_of(model.network, rows_of([np.arange(8, 16)], 8))
    torch.testing.assert_close(logits[1:2], alone, rtol=0, atol=1e-5)
    assert isinstance(model, nn.Module)
    assert batch.num_targets == 20 - 3


def test_a_misspelt_field_is_refused():
    """A field that the model does not have is refused with the nearest one, not kept and never read."""
    factory = HuggingfaceModelFactory(config={"model_type": "llama", "hiden_size": 32})
    with pytest.raises(ConfigurationError, match=r"hiden_size.*did you mean hidden_size"):
        factory.build(vocabulary_size=300, end_of_text=0, seed=0)


def test_a_prompt_longer_than_the_model_s_positions_loses_its_beginning():
    """Generating behind a prompt that fills all positions works; more new tokens than positions are refused."""
    config = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 16}
    model = HuggingfaceModelFactory(config=config).build(vocabulary_size=300, end_of_text=0, seed=0)
    long, short = list(range(1, 41)), list(range(29, 41))
    sampling = Sampling(max_new_tokens=4, temperature=0.0)
    assert model.generate(long, sampling, end_of_text=0) == model.generate(short, sampling, end_of_text=0)
    with pytest.raises(ConfigurationError, match="16 positions"):
        model.generate(long, Sampling(max_new_tokens=16), end_of_text=0)


@pytest.mark.parametrize("config", [{"model_type": "t5"}, {"model_type": "vit"}])
def test_a_model_of_another_task_is_refused(config):
    """A model that transformers has, but not as one that predicts the next token, is refused as that."""
    with pytest.raises(ConfigurationError, match="not a causal language model"):
        build(config=config)


def test_attention_of_ours_stays_out_of_what_is_captured(tmp_path):
    """What is trained with an attention that transformers does not have is loaded there as it is."""
    folder = captured(build(config=LLAMA, attention="varlen"), tmp_path / "model")
    network = AutoModelForCausalLM.from_pretrained(folder)
    assert "varlen" not in (folder / "config.json").read_text()
    assert network.config._attn_implementation == "sdpa"


def test_varlen_attention_generates_what_others_do():
    """A prompt is continued in the same way by every kind of attention."""
    sampling = Sampling(max_new_tokens=8, temperature=0.0)
    found = [
        build(config=LLAMA, attention=name).generate([1, 2, 3], sampling, end_of_text=END_OF_TEXT)
        for name in ("sdpa", "eager", "varlen")
    ]
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 0
