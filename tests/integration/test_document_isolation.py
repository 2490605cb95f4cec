import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from holdfast.adapters.model_factory.huggingface import HuggingfaceModelFactory
from holdfast.adapters.shared.modeling.attention import choose_attention, packed_arguments, register_attention
from holdfast.adapters.shared.modeling.document_isolation import probe_isolation, raise_mixed_rows
from holdfast.domain.data.packing import ConcatPacking, SlidingPacking, place_rows
from holdfast.domain.data.row_index import read_rows
from holdfast.domain.errors import ConfigurationError

VOCABULARY, END = 257, 256
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
LAYERS = {"num_hidden_layers": 2}
NEMOTRON_H = {
    "model_type": "nemotron_h",
    "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "n_groups": 1,
    "ssm_state_size": 8,
    "chunk_size": 16,
    **SIZES,
}
ISOLATING = {
    "llama": {"model_type": "llama", **SIZES, **LAYERS},
    "qwen3": {"model_type": "qwen3", **SIZES, **LAYERS},
    "gpt2": {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4},
    "nemotron": {"model_type": "nemotron", **SIZES, **LAYERS},
    "mistral": {"model_type": "mistral", "sliding_window": 6, **SIZES, **LAYERS},
}
CASES = [
    (name, attention)
    for name in ISOLATING
    for attention in ("sdpa", "eager", "varlen")
    if (name, attention) != ("nemotron", "varlen")  # transformers does not hand it the documents' lengths
]


def build(config, attention="auto"):
    return HuggingfaceModelFactory(config=config, attention=attention).build(
        vocabulary_size=VOCABULARY, end_of_text=END, seed=0
    )


def documents():
    generator = np.random.default_rng(5)
    return [generator.integers(0, END, length) for length in (7, 12, 2, 21, 1, 5, 30, 17)]


def rows_of(texts, packing):
    return read_rows(place_rows(texts, packing), packing.length)


def logits_of(network, batch):
    position_ids = torch.from_numpy(batch.position_ids)
    with torch.no_grad():
        arguments = packed_arguments(network, position_ids)
        return network(input_ids=torch.from_numpy(batch.input_ids), **arguments).logits


def largest_leak(network, packing):
    """Return by how much logits in the rows of ``packing`` differ from those that each piece has alone."""
    network.eval()
    batch = rows_of(documents(), packing)
    packed = logits_of(network, batch).flatten(0, 1)
    ids, leaks = batch.input_ids.reshape(-1), []
    ends = np.append(batch.starts[1:], ids.size)
    for start, end in zip(batch.starts, ends, strict=True):
        row = start // packing.length
        length = min(end, row * packing.length + batch.row_lengths[row]) - start
        alone = rows_of([ids[start : start + length]], ConcatPacking(int(length)))
        leaks.append((packed[start : start + length] - logits_of(network, alone)[0]).abs().max())
    return float(max(leaks))


@pytest.mark.parametrize(("name", "attention"), CASES)
def test_a_packed_document_has_the_logits_that_it_has_alone(name, attention):
    """In rows of several documents, and several such rows at once, nobody sees another document: the probe agrees."""
    model = build(ISOLATING[name], attention)
    assert model.network.config._attn_implementation == attention
    assert largest_leak(model.network, ConcatPacking(32)) <= 1e-5
    assert model.isolates_documents


def test_nemotron_h_is_right_with_one_document_a_row():
    """Its state crosses documents, which the probe finds; in rows of one document its logits are right."""
    model = build(NEMOTRON_H)
    assert largest_leak(model.network, ConcatPacking(32)) > 1e-4
    assert not model.isolates_documents
    assert "one document" in " ".join(model.notes)
    assert largest_leak(model.network, SlidingPacking(32, 32)) <= 1e-5
    with pytest.raises(ConfigurationError, match=r"data\.packing\.kind=sliding .*data\.packing\.stride=32"):
        raise_mixed_rows(model.network, 32)


def test_the_first_attention_that_isolates_is_taken():
    """Of several kinds of attention a model gets the first that keeps its documents apart, and a note says which."""
    model = build(ISOLATING["nemotron"], "varlen,sdpa,eager")
    assert model.network.config._attn_implementation == "sdpa"
    assert largest_leak(model.network, ConcatPacking(32)) <= 1e-5
    assert "varlen" in " ".join(model.notes)


@pytest.mark.parametrize("attention", ["sdpa", "eager", "varlen"])
@pytest.mark.parametrize("is_training", [True, False])
def test_varlen_gradients_are_those_of_other_attention(attention, is_training):
    """Each kind of attention gives the same loss and the same gradients, in both modes."""
    batch = rows_of(documents(), ConcatPacking(32))
    parts = {name: torch.from_numpy(getattr(batch, name)) for name in ("input_ids", "position_ids", "loss_mask")}
    found = []
    for name in ("sdpa", attention):
        model = build(ISOLATING["llama"], name).train(is_training)
        loss = model(**parts)
        loss.backward()
        found.append((loss.detach(), [parameter.grad for parameter in model.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-4)


def test_a_kernel_that_finds_documents_in_one_row_only_is_found_out():
    """Attention that isolates a row by itself but not several at once, as flash attention by positions, is no good."""

    def forgetful(module, query, key, value, attention_mask, **options):
        mask = attention_mask if len(query) == 1 else None
        groups = {"enable_gqa": query.shape[1] != key.shape[1], "scale": options["scaling"]}
        out = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None, **groups)
        return out.transpose(1, 2), None

    register_attention("forgetful", forgetful)
    assert not build(ISOLATING["llama"], "forgetful").isolates_documents


def test_own_attention_gets_the_documents_lengths():
    """A function of another package that asks for lengths gets where documents end, in rows of one batch."""
    seen = []

    def by_lengths(module, query, key, value, attention_mask, **options):
        seen.append((attention_mask, options["cu_seq_lens_q"].tolist(), options["max_length_q"]))
        return query.transpose(1, 2), None

    by_lengths.mask = "lengths"
    register_attention("by_lengths", by_lengths)
    network = build(ISOLATING["llama"], "by_lengths").network
    seen.clear()
    logits_of(network, rows_of([np.arange(5), np.arange(3), np.arange(6)], ConcatPacking(8)))
    assert seen == [(None, [0, 5, 8, 14, 15, 16], 8)] * 2  # two places of padding, each by itself


def test_an_unknown_mask_is_refused():
    """An own attention that asks for a mask that there is not is refused by name."""

    def strange(module, *arguments, **options):
        raise NotImplementedError

    strange.mask = "triangle"
    with pytest.raises(ConfigurationError, match=r"strange.*triangle"):
        register_attention("strange", strange)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", ["bert", "roberta"])
def test_a_model_that_sees_ahead_is_refused(model_type):
    """A model whose tokens see later ones is refused in one sentence, before any step."""
    config = {"model_type": model_type, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    with pytest.raises(ConfigurationError, match="is not causal"):
        build(config | LAYERS)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_told_as_such(value):
    """The first tensor that holds any is named, and nobody is told that the model is not causal."""
    built = build({"model_type": "llama", **SIZES, **LAYERS}).network
    with torch.no_grad():
        built.model.layers[1].mlp.up_proj.weight[3, 4] = value
    with pytest.raises(ConfigurationError, match=r"model\.layers\.1\.mlp\.up_proj\.weight holds NaN or infinity"):
        probe_isolation(built, length=64, vocabulary=VOCABULARY)


class Blind(nn.Module):
    """Predicts from the token alone, with noise and no notion of documents."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.dropout = nn.Dropout(0.5)
        self.config = SimpleNamespace()

    def forward(self, input_ids, position_ids, use_cache):
        return SimpleNamespace(logits=self.dropout(self.embed(input_ids)))


def test_the_probe_leaves_no_trace():
    """Random state, gradients and each module's mode are as they were, and rows shorter than the probe's do."""
    network = Blind().train()
    network.embed.eval()
    state = torch.get_rng_state()
    for length in (6, 8, 48):
        assert probe_isolation(network, length=length, vocabulary=VOCABULARY)
    assert torch.equal(torch.get_rng_state(), state)
    assert (network.training, network.dropout.training, network.embed.training) == (True, True, False)
    assert network.embed.weight.grad is None


@pytest.mark.parametrize(
    ("wanted", "device", "precision", "chosen"),
    [
        ("auto", "cpu", "bf16", "sdpa,eager"),
        ("auto", "mps", "fp32", "sdpa,eager"),
        ("auto", "cuda", "fp32", "sdpa,eager"),
        ("eager", "cpu", "fp32", "eager"),
        ("varlen", "cpu", "fp32", "varlen"),
    ],
)
def test_attention_is_chosen_by_device_and_precision(wanted, device, precision, chosen):
    """By itself attention is what runs on the device in the precision; a name is taken as it is."""
    assert choose_attention(wanted, device, precision)[0] == chosen


@pytest.mark.parametrize("wanted", ["flash_attention_2", "flex_attention"])
def test_attention_that_a_device_lacks_is_refused(wanted):
    """Attention that cannot train on the device is refused, with what to do."""
    with pytest.raises(ConfigurationError, match=rf"{wanted}.*auto"):
        choose_attention(wanted, "cpu", "fp32")


def test_on_a_gpu_kernels_for_packed_documents_come_first(monkeypatch):
    """In half precision on a recent GPU flash-attn is first where it is installed, then torch's varlen, then sdpa."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    monkeypatch.setattr("holdfast.adapters.shared.modeling.attention.find_spec", lambda name: None)
    assert choose_attention("auto", "cuda", "bf16")[0] == "varlen,sdpa,eager"
    monkeypatch.setattr("holdfast.adapters.shared.modeling.attention.find_spec", lambda name: name)
    assert choose_attention("auto", "cuda", "bf16")[0] == "flash_attention_2,varlen,sdpa,eager"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert choose_attention("auto", "cuda", "fp16")[0] == "sdpa,eager"
