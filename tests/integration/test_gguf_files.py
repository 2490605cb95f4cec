"""GGUF files as transformers reads them."""

from __future__ import annotations

import json
import re

import pytest
import torch
from tokenizers import normalizers

from holdfast.adapters.shared.model_export.gguf_file import read_gguf, read_gguf_tokenizer, write_gguf
from holdfast.adapters.shared.model_export.gguf_vocabulary import TokenType, read_vocabulary
from holdfast.domain.errors import ConfigurationError
from tests.support.gguf_models import CONFIGS, LLAMA, SIZE, model_of, network_of
from tests.support.small_tokenizers import PATTERNS, TEXTS, sentencepiece_tokenizer, small_tokenizer, write_tokenizer

gguf = pytest.importorskip("gguf")


def logits_of(network):
    ids = torch.randint(0, SIZE, (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return network(ids, use_cache=False).logits


@pytest.mark.parametrize("weights", ["f16", "bf16"])
@pytest.mark.parametrize("name", CONFIGS)
def test_half_precision_is_read_back(tmp_path, name, weights):
    """A model whose weights fit into 16 bits has the same logits, within 1e-4, as transformers reads its file."""
    network = network_of(CONFIGS[name])
    assert not write_gguf(model_of(network, tmp_path), tmp_path / "model.gguf", weights)
    again = read_gguf(tmp_path / "model.gguf", network.config)
    torch.testing.assert_close(logits_of(again), logits_of(network), rtol=0, atol=1e-4)


@pytest.mark.parametrize(("weights", "most"), [("q8_0", 0.01), ("q4_0", 0.15)])
def test_blocks_are_close(tmp_path, weights, most):
    """Weights in blocks of 8 and 4 bits are within that share of the largest weight of each block."""
    network = network_of(CONFIGS["llama"])
    write_gguf(model_of(network, tmp_path), tmp_path / "model.gguf", weights)
    again = read_gguf(tmp_path / "model.gguf", network.config).state_dict()
    for name, tensor in network.state_dict().items():
        largest = tensor.reshape(-1, 32).abs().amax(1, keepdim=True) if tensor.ndim > 1 else 0
        assert ((again[name] - tensor).reshape(-1, 32).abs() <= most * largest).all(), name


def test_rows_that_fill_no_block_are_told(tmp_path):
    """A matrix whose rows are no multiple of 32 is stored as f16, and a remark says so."""
    network = network_of(LLAMA | {"intermediate_size": 72})
    [remark] = write_gguf(model_of(network, tmp_path), tmp_path / "model.gguf", "q8_0")
    assert remark.startswith("2 matrices, such as model.layers.0.mlp.down_proj.weight, are stored as f16")
    kinds = {each.name: each.tensor_type.name for each in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds["blk.0.ffn_down.weight"] == "F16"
    assert kinds["blk.0.ffn_up.weight"] == "Q8_0"


def test_numbers_beyond_f16_are_refused(tmp_path):
    """A weight that f16 cannot represent is refused with a format that can."""
    network = network_of(LLAMA)
    with torch.no_grad():
        network.model.layers[0].mlp.up_proj.weight[0, 0] = 1e5
    with pytest.raises(ConfigurationError, match=r"up_proj.weight holds .* choose --format gguf:bf16"):
        write_gguf(model_of(network, tmp_path), tmp_path / "model.gguf", "f16")


@pytest.mark.parametrize("split", PATTERNS)
def test_the_tokenizer_is_read_back(tmp_path, split):
    """The file gives transformers a tokenizer with the same ids, and the chat template."""
    core = small_tokenizer(split)
    write_gguf(model_of(network_of(LLAMA), tmp_path, core), tmp_path / "model.gguf", "f16")
    again = read_gguf_tokenizer(tmp_path / "model.gguf")
    for text in (*TEXTS, "a <tool> b <|begin|>"):
        assert again.encode(text, add_special_tokens=False) == core.encode(text, add_special_tokens=False).ids
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    assert fields["tokenizer.chat_template"].contents() == "{{ messages }}"
    assert fields["tokenizer.ggml.pre"].contents() == split
    assert fields["tokenizer.ggml.eos_token_id"].contents() == core.token_to_id("<|endoftext|>")


def test_a_tokenizer_of_sentencepiece_is_read_back(tmp_path):
    """A tokenizer like that of Llama 2 has the same ids from the scores in the file, bytes and beginning included."""
    core = sentencepiece_tokenizer()
    fields = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    write_gguf(model_of(network_of(LLAMA), tmp_path, core, **fields), tmp_path / "model.gguf", "f16")
    again = read_gguf_tokenizer(tmp_path / "model.gguf")
    for text in TEXTS[:-1]:
        assert again.encode(text, add_special_tokens=False) == core.encode(text, add_special_tokens=False).ids
    fields = gguf.GGUFReader(tmp_path / "model.gguf").fields
    assert fields["tokenizer.ggml.model"].contents() == "llama"
    assert fields["tokenizer.ggml.add_bos_token"].contents()
    kinds = fields["tokenizer.ggml.token_type"].contents()
    assert kinds[:4] == [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, TokenType.BYTE]


def test_another_treatment_of_spaces_is_told(tmp_path):
    """A tokenizer that puts no space before a text with a space is written with a remark, as llama.cpp does put one."""
    write_tokenizer(sentencepiece_tokenizer(doubles_space=False), tmp_path, eos_token="</s>")
    [remark] = read_vocabulary(tmp_path, size=SIZE).remarks
    assert remark.startswith("llama.cpp puts a space before each text")


def test_composed_characters_are_told(tmp_path):
    """A tokenizer that composes characters is written with a remark, as llama.cpp does not compose them."""
    core = small_tokenizer("qwen2")
    core.normalizer = normalizers.NFC()
    write_tokenizer(core, tmp_path)
    [remark] = read_vocabulary(tmp_path, size=SIZE).remarks
    assert "does not compose characters" in remark


def test_merges_that_sentencepiece_would_not_leave_out_are_refused(tmp_path):
    """A token that the merges do not make from all its halves is refused, and these are named."""
    core = sentencepiece_tokenizer()
    record = json.loads(core.to_str())
    lacking = record["model"]["merges"].pop()
    write_tokenizer(core, tmp_path, eos_token="</s>")
    (tmp_path / "tokenizer.json").write_text(json.dumps(record))
    with pytest.raises(ConfigurationError, match=re.escape(f"do not join {lacking[0]} and {lacking[1]}")):
        read_vocabulary(tmp_path, size=SIZE)


def test_the_file_describes_the_tokenizer(tmp_path):
    """The file has the type of each token, the merges in order, the name of the split, and the tokens of a text."""
    core = small_tokenizer("llama-bpe", vocabulary_size=390, adds_bos=True)
    write_tokenizer(core, tmp_path, bos_token="<|begin|>")
    vocabulary = read_vocabulary(tmp_path, size=SIZE)
    assert vocabulary.merging.pre == "llama-bpe"
    assert (vocabulary.adds_bos, vocabulary.adds_eos) == (True, False)
    assert vocabulary.special == {"bos": core.token_to_id("<|begin|>"), "eos": core.token_to_id("<|endoftext|>")}
    kinds = dict(zip(vocabulary.tokens, vocabulary.types, strict=True))
    assert kinds["<|begin|>"] is kinds["<|endoftext|>"] is TokenType.CONTROL
    assert kinds["<tool>"] is TokenType.USER_DEFINED
    assert kinds["[PAD395]"] is TokenType.UNUSED
    assert kinds["the"] is TokenType.NORMAL
    assert len(vocabulary.tokens) == SIZE
    assert all(len(merge.split(" ")) == 2 for merge in vocabulary.merging.merges)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "it changes text by Lowercase"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "it does not split text into bytes"),
        ({"pre_tokenizer": None}, "it does not split text into bytes"),
    ],
)
def test_a_tokenizer_without_a_place_is_refused(tmp_path, change, complaint):
    """A tokenizer that llama.cpp cannot repeat is refused, and the reason is named."""
    write_tokenizer(small_tokenizer("gpt-2"), tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ConfigurationError, match=complaint):
        read_vocabulary(tmp_path, size=SIZE)


def test_words_without_merges_are_refused(tmp_path):
    """A split that llama.cpp combines with whole words is refused for a tokenizer that always merges."""
    core = small_tokenizer("llama-bpe")
    core.model.ignore_merges = False
    write_tokenizer(core, tmp_path)
    with pytest.raises(ConfigurationError, match="ignore_merges is False with the split llama-bpe"):
        read_vocabulary(tmp_path, size=SIZE)
