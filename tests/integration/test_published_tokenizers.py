"""The tokenizer.json of a model, which the model was trained with, and what transformers makes of it."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.application.data.tokenizer_difference import find_difference
from tests.support.small_tokenizers import sentencepiece_tokenizer, small_tokenizer, write_tokenizer

TEXTS = ("born in 1999", " two  spaces", "It's\n\n fooBar", "e\u0301 \u00e9", "")
LLAMA = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>", "tokenizer_class": "LlamaTokenizer"}


def prefixed():
    core = small_tokenizer("gpt-2")
    record = json.loads(core.to_str())
    record["pre_tokenizer"]["add_prefix_space"] = True
    return type(core).from_str(json.dumps(record))


def folder_of(core, folder, model_type, **fields):
    folder.mkdir(exist_ok=True)
    write_tokenizer(core, folder, **fields)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


KINDS = {
    "llama": (sentencepiece_tokenizer, "llama", LLAMA),
    "gpt2": (prefixed, "gpt2", {"tokenizer_class": "GPT2Tokenizer"}),
    "qwen2": (lambda: small_tokenizer("llama-bpe"), "qwen2", {"tokenizer_class": "Qwen2Tokenizer"}),
    "cohere": (lambda: small_tokenizer("llama-bpe"), "cohere", {"tokenizer_class": "CohereTokenizer"}),
}


def loaded(path, **options):
    told = []
    return HuggingfaceTokenizer.load(str(path), backend="huggingface", report=told.append, **options), told


@pytest.mark.parametrize("name", KINDS)
def test_a_folder_and_its_file_give_the_ids_of_the_file(tmp_path, name):
    """Where AutoTokenizer builds another tokenizer, that of the file is used, and said with an example."""
    make, model_type, fields = KINDS[name]
    core = make()
    folder = folder_of(core, tmp_path / "model", model_type, **fields)
    by_folder, told = loaded(folder)
    by_file, _ = loaded(folder / "tokenizer.json")
    assert find_difference(by_folder, by_file) is None
    for text in TEXTS:
        ids = core.encode(text, add_special_tokens=False).ids
        assert by_folder.encode([text]).ids.tolist() == by_file.encode([text]).ids.tolist() == ids
    differs = any(AutoTokenizer.from_pretrained(folder)(text)["input_ids"] != core.encode(text).ids for text in TEXTS)
    assert differs == bool(
        [line for line in told if "tokenizer.loader=transformers" in line and " by the file" in line]
    )
    assert differs


@pytest.mark.parametrize("name", KINDS)
def test_a_checkpoint_is_read_as_it_was_trained(tmp_path, name):
    """AutoTokenizer gives the ids of training with the files beside a model, or it is said that it never will."""
    make, model_type, fields = KINDS[name]
    tokenizer, told = loaded(folder_of(make(), tmp_path / "model", model_type, **fields))
    written = tmp_path / "checkpoint"
    written.mkdir()
    tokenizer.write(written)
    assert PreTrainedTokenizerFast.from_pretrained(written)("1999")["input_ids"] == [
        *tokenizer.around[0],
        *tokenizer.encode(["1999"]).ids.tolist(),
    ]
    (written / "config.json").write_text(json.dumps({"model_type": model_type}))
    theirs = AutoTokenizer.from_pretrained(written)
    agrees = all(
        theirs(text)["input_ids"] == [*tokenizer.around[0], *tokenizer.encode([text]).ids.tolist()] for text in TEXTS
    )
    assert agrees == (not [line for line in told if "anew" in line])
    assert agrees == (name != "qwen2")


def test_what_transformers_makes_can_be_chosen(tmp_path):
    """With ``loader=transformers`` the ids are those of AutoTokenizer, and nothing is said."""
    folder = folder_of(small_tokenizer("llama-bpe"), tmp_path / "model", "qwen2", tokenizer_class="Qwen2Tokenizer")
    tokenizer, told = loaded(folder, loader="transformers")
    theirs = AutoTokenizer.from_pretrained(folder)
    assert [tokenizer.encode([text]).ids.tolist() for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]
    assert not [line for line in told if "differ" in line]


def test_equal_tokenizers_are_not_talked_about(tmp_path):
    """A folder whose file transformers takes as it is keeps the files that transformers writes."""
    folder = folder_of(small_tokenizer("qwen2"), tmp_path / "model", "llama")
    tokenizer, told = loaded(folder)
    assert not [line for line in told if "differ" in line]
    tokenizer.write(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["backend"] == "tokenizers"


def test_files_are_in_words_that_transformers_4_knows(tmp_path):
    """The class and the further special tokens have the names of both versions, and nothing tells of this machine."""
    more = {"tokenizer_class": "PreTrainedTokenizerFast", "additional_special_tokens": ["<|endoftext|>", "<x>"]}
    folder = folder_of(small_tokenizer("qwen2"), tmp_path / "model", "llama", **more)
    tokenizer, _ = loaded(folder)
    tokenizer.write(tmp_path)
    written = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert written | more == written
    assert not {"extra_special_tokens", "is_local", "local_files_only"} & written.keys()
    theirs = [AutoTokenizer.from_pretrained(each) for each in (folder, tmp_path)]
    assert theirs[0].all_special_tokens == theirs[1].all_special_tokens
