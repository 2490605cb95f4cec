import json
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from holdfast.adapters.model_factory.decoder import DecoderModelFactory
from holdfast.adapters.shared.decoder.decoder_attention import ATTENTIONS
from holdfast.adapters.shared.decoder.network import draw
from holdfast.configs.sections.decoder import DecoderModelSettings
from holdfast.domain.errors import ConfigurationError
from holdfast.domain.training.text_generation import Sampling
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
    loss_of,
    rows_of,
    shaken,
)

LARGER = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 8}


@pytest.mark.parametrize("name", SHAPES)
def test_equal_seeds_give_equal_weights(name):
    """Two builds with one seed are equal bit for bit in every shape, and another seed draws every matrix anew."""
    first, second, other = (build(SHAPES[name], seed=seed).network.state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert all(torch.equal(first[key], other[key]) == (first[key].dim() == 1) for key in first)


def _deviations(network):
    return {name: float(tensor.std()) for name, tensor in network.state_dict().items() if tensor.dim() == 2}


@pytest.mark.parametrize(
    ("config", "theirs"),
    [
        (LLAMA | LARGER, LlamaConfig(vocab_size=VOCABULARY_SIZE, **(LLAMA | LARGER))),
        (
            GPT2 | LARGER,
            GPT2Config(vocab_size=VOCABULARY_SIZE, n_embd=128, n_layer=8, n_head=4, n_positions=64, n_inner=256),
        ),
    ],
    ids=["llama", "gpt2"],
)
def test_weights_are_drawn_as_transformers_draws_them(config, theirs):
    """Matrices have the deviations that transformers gives them in a new model of this shape, vectors the values."""
    ours = build(config).network
    with torch.random.fork_rng():
        theirs = ours.from_huggingface(AutoModelForCausalLM.from_config(theirs).state_dict())
    for name, tensor in theirs.items():
        mine = ours.state_dict()[name]
        if tensor.dim() == 1:
            assert torch.equal(mine, tensor), name
        else:
            assert mine.std().item() == pytest.approx(tensor.std().item(), rel=0.08), name
            assert abs(mine.mean()) < 0.002


@pytest.mark.parametrize("scheme", ["llama", "gpt2"])
def test_the_initialisation_is_a_choice(scheme):
    """gpt2 divides what ends a residual branch by the root of twice the layers, llama does not, whatever the shape."""
    network = build(LLAMA | LARGER, initialisation=scheme, initializer_range=0.1).network
    for name, deviation in _deviations(network).items():
        ends_branch = name.endswith(("o_proj.weight", "down_proj.weight"))
        expected = 0.1 / 4 if scheme == "gpt2" and ends_branch else 0.1
        assert deviation == pytest.approx(expected, rel=0.05), name


def test_a_tied_embedding_is_one_parameter():
    """Embedding and prediction are one tensor if tied, so that training moves both, and two if not."""
    for is_tied in (True, False):
        network = build(LLAMA | {"tie_word_embeddings": is_tied}).network
        shared = network.get_input_embeddings().weight is network.get_output_embeddings().weight
        assert shared == is_tied == network.config.tie_word_embeddings
        assert len(list(network.parameters())) == len(network.state_dict()) - is_tied


@pytest.mark.parametrize("name", SHAPES)
def test_every_weight_learns(name):
    """A step of training gives each parameter a gradient, and a few of them a lower loss."""
    model = build(SHAPES[name])
    batch = rows_of(documents_of(24, 24), 24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(4):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        idle = [key for key, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0]
        assert all("k_proj.bias" in key for key in idle)  # a shift of all keys changes nothing without rotation
        optimizer.step()
        losses.append(loss.item())
    assert all(after < before for before, after in pairwise(losses))


def test_the_network_offers_what_hugging_face_models_do():
    """Losses, engines and reports find in a decoder what they use of a Hugging Face model."""
    network = build(LLAMA).network.eval()
    batch = rows_of(documents_of(24), 24)
    ids, positions = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.position_ids)
    hidden = network.base_model(input_ids=ids, position_ids=positions, use_cache=False).last_hidden_state
    assert hidden.shape == (1, 24, 32)
    assert torch.equal(network.get_output_embeddings()(hidden), logits_of(network, batch))
    assert network.get_input_embeddings().num_embeddings == network.config.vocab_size == VOCABULARY_SIZE
    assert isinstance(network.base_model.layers, nn.ModuleList)
    assert len(network.base_model.layers) == network.config.num_hidden_layers == 2
    assert (network.config.hidden_size, network.config.max_position_embeddings) == (32, 64)
    assert network.device.type == "cpu"
    assert network.generation_config is None
    described = json.loads(network.config.to_json_string())
    assert described["model_type"] == "llama"
    assert described["eos_token_id"] == END_OF_TEXT


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "own"])
def test_generating_is_the_same_as_reading(name, attention):
    """Each new token of a greedy continuation is the likeliest one behind all tokens before it."""
    model = shaken(build(SHAPES[name], attention=attention))
    prompt = documents_of(7)[0].tolist()
    new = model.generate(prompt, Sampling(max_new_tokens=12, temperature=0.0), end_of_text=END_OF_TEXT)
    whole = [*prompt, *new]
    likeliest = logits_of(model.network.eval(), rows_of([torch.tensor(whole).numpy()], len(whole)))[0].argmax(dim=-1)
    assert new == likeliest[len(prompt) - 1 : -1].tolist()
    assert new


def test_the_likeliest_token_always_stays():
    """However few tokens sampling keeps, the likeliest is one of them."""
    logits = torch.randn(50, 11, generator=torch.Generator().manual_seed(0))
    likeliest = logits.argmax(dim=-1)
    with torch.random.fork_rng():
        assert torch.equal(draw(logits, top_p=0.0), likeliest)
        assert torch.equal(draw(logits, top_k=1), likeliest)
        assert not torch.equal(draw(logits, top_k=100), likeliest)


def test_prompts_of_different_lengths_are_refused():
    """Padding in prompts, which a decoder would read as tokens, is refused."""
    network = build(LLAMA).network
    mask = torch.tensor([[0, 1, 1]])
    with pytest.raises(ConfigurationError, match="one at a time"):
        network.generate(mask, attention_mask=mask, max_new_tokens=1, eos_token_id=0, pad_token_id=0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_attention_heads": 5}, r"hidden_size, 32, is not a multiple of .*num_attention_heads, 5"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_key_value_heads": 3}, r"4, is not a multiple of .*3"),
        ({"num_key_value_heads": 8}, r"4, is not a multiple of .*8"),
        ({"head_dim": 7}, "head_dim is 7.*even"),
        ({"hidden_size": "large"}, "hidden_size is 'large'"),
        ({"hidden_size": 36, "num_attention_heads": 4, "num_key_value_heads": 4}, "head_dim is 9.*even"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"intermediate_size": None}, "intermediate_size is missing"),
        ({"hiden_size": 32}, "did you mean hidden_size"),
        ({"activation": "tanh"}, "activation is 'tanh'.*silu"),
        ({"norm": "none"}, "norm is 'none'"),
        ({"norm_epsilon": 0}, "norm_epsilon is 0"),
        ({"positions": "alibi"}, "positions is 'alibi'"),
        ({"rope_theta": 1}, "rope_theta is 1"),
        ({"rope_scaling": {"kind": "yarn", "factor": 2.0}}, "rope_scaling.kind is 'yarn'"),
        ({"rope_scaling": {"kind": "linear", "factor": 0.5}}, "rope_scaling.factor is 0.5"),
        ({"rope_scaling": {"kind": "linear"}}, "rope_scaling lacks a field"),
        ({"rope_scaling": {"kind": "linear", "faktor": 2}}, "did you mean factor"),
        ({"rope_scaling": {"kind": "llama3", "factor": 2, "low_freq_factor": 4}}, "low_freq_factor"),
        ({"positions": "learned", "rope_scaling": {"kind": "linear", "factor": 2}}, "positions is learned"),
        ({"attention_bias": 1}, "attention_bias is 1"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": 96}, "97 ids but the model embeds 96"),
    ],
)
def test_a_shape_that_cannot_be_built_is_refused(change, named):
    """Whatever is wrong with a shape, a person reads one line that names the setting."""
    with pytest.raises(ConfigurationError, match=named) as raised:
        build(LLAMA | change)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"dropout": {"residual": 1.0}}, "dropout.residual is 1.0"),
        ({"dropout": {"attn": 0.1}}, "did you mean attention"),
        ({"attention": "no-such-attention"}, "no-such-attention"),
        ({"initialisation": "xavier"}, "xavier"),
        ({"sequence_length": 65}, "65 but the model has 64 positions"),
        ({"path": "somewhere"}, "leave out hidden_size"),
    ],
)
def test_an_option_that_cannot_be_obeyed_is_refused(options, named):
    """Options that name nothing, or more than there is, are refused in one sentence."""
    with pytest.raises(ConfigurationError, match=named):
        build(LLAMA, **options)
    assert build(LLAMA, attention="flash_attention_2,sdpa,eager", sequence_length=64).training


def damage(folder, how):
    weights, config = folder / "model.safetensors", folder / "config.json"
    tensors, described = load_file(weights), json.loads(config.read_text())
    if how == "missing":
        save_file({name: tensors[name] for name in tensors if "norm" not in name}, weights)
    elif how == "more":
        save_file(tensors | {"model.layers.0.self_attn.q_norm.weight": torch.ones(8)}, weights)
    elif how == "shape":
        save_file(tensors | {"model.norm.weight": torch.zeros(3)}, weights)
    elif how == "integers":
        save_file({name: tensor.view(torch.int32) for name, tensor in tensors.items()}, weights)
    elif how == "garbage":
        weights.write_bytes(b"no tensors at all")
    elif how == "no json":
        config.write_text("{")
    elif how == "no object":
        config.write_text("[]")
    elif how in ("type", "field"):
        other = {"model_type": "mistral"} if how == "type" else {"hidden_size": "large"}
        config.write_text(json.dumps(described | other))
    elif how == "index":
        (folder / "model.safetensors.index.json").write_text("{}")


@pytest.mark.parametrize(
    "how", ["missing", "more", "shape", "integers", "garbage", "no json", "no object", "type", "field", "index"]
)
def test_a_damaged_folder_is_refused(how, tmp_path):
    """A folder that lacks a tensor, has one too many or says nothing of use is refused in one line that names it."""
    folder = export(build(LLAMA).network, tmp_path / "model")
    assert build(path=str(folder)).training
    damage(folder, how)
    with pytest.raises(ConfigurationError, match="model") as raised:
        build(path=str(folder))
    assert "\n" not in str(raised.value)


def test_an_index_names_no_file_outside_its_folder(tmp_path):
    """A weight file that an index places elsewhere is looked for in the model's folder, and nowhere else."""
    folder = export(build(LLAMA).network, tmp_path / "model")
    (folder / "model.safetensors").rename(tmp_path / "model.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../model.safetensors"}}))
    with pytest.raises(ConfigurationError, match=str(folder)):
        build(path=str(folder))


def test_half_precision_weights_are_trained_in_full(tmp_path):
    """Weights that are stored in bfloat16 are loaded as fp32, value by value."""
    folder = export(build(LLAMA).network, tmp_path / "model")
    halves = {name: tensor.bfloat16() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(halves, folder / "model.safetensors", metadata={"format": "pt"})
    state = build(path=str(folder)).network.state_dict()
    assert all(torch.equal(state[name], tensor.float()) for name, tensor in halves.items())


def test_a_tied_matrix_may_stand_twice(tmp_path):
    """A folder that holds embedding and prediction apart, though they are one, is read."""
    network = build(LLAMA | {"tie_word_embeddings": True}).network
    folder = export(network, tmp_path / "model")
    save_file({name: tensor.clone() for name, tensor in network.state_dict().items()}, folder / "model.safetensors")
    assert torch.equal(build(path=str(folder)).network.lm_head.weight, network.lm_head.weight)


def test_the_settings_describe_a_decoder():
    """What the settings say, defaults and all, is what is built; beside a path they say nothing of the shape."""
    settings = DecoderModelSettings(rope_scaling={"kind": "linear", "factor": 2}, dropout={"residual": 0.1})
    network = build(settings.shape, dropout=settings.dropped, initialisation=settings.initialisation).network
    assert network.config.vocab_size == VOCABULARY_SIZE
    assert network.config.hidden_size == settings.hidden_size
    assert network.config.dropout.residual == 0.1
    assert network.config.shape.positions.scaling.factor == 2
    beside = DecoderModelSettings(path="/a/folder")
    assert (beside.shape, beside.dropped, beside.loads_weights) == ({}, None, True)
    assert DecoderModelSettings.model_validate(beside.model_dump()) == beside
    with pytest.raises(ValueError, match="path and hidden_size"):
        DecoderModelSettings(path="/a/folder", hidden_size=64)


def test_a_misspelt_folder_is_guessed(tmp_path):
    """A path without a folder names the folder beside it that is like it."""
    (tmp_path / "company-base").mkdir()
    with pytest.raises(ConfigurationError, match=f"did you mean the folder {tmp_path / 'company-base'}\\?"):
        DecoderModelFactory(path=tmp_path / "company-bas").check()
