"""A tokenizer gives a text the same ids wherever it is read, or a sentence says that it does not."""

from __future__ import annotations

import json
import unicodedata

import pytest
from transformers import AutoTokenizer

from holdfast.adapters.shared.model_export.gguf_file import write_gguf
from holdfast.adapters.shared.model_export.gguf_vocabulary import read_vocabulary
from holdfast.adapters.tokenizer.huggingface import HuggingfaceTokenizer
from holdfast.domain.errors import ConfigurationError
from tests.integration.test_llama_cpp import likeliest
from tests.support.gguf_models import LLAMA, SIZE, model_of, network_of
from tests.support.many_tokenizers import NASTY, forty
from tests.support.small_tokenizers import write_tokenizer

pytestmark = pytest.mark.slow

MADE = dict(forty())
FIELDS = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>", "pad_token": "<pad>"}


@pytest.fixture(params=MADE)
def made(request):
    return MADE[request.param]()


@pytest.fixture
def folder(made, tmp_path):
    """Return a model folder with the tokenizer."""
    (tmp_path / "model").mkdir()
    write_tokenizer(made.core, tmp_path / "model", **FIELDS, tokenizer_class=made.tokenizer_class)
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": made.model_type}))
    return tmp_path / "model"


def test_there_are_forty():
    """The kinds are those of published models."""
    assert len(MADE) == 40


def test_folder_file_and_checkpoint_give_equal_ids(made, folder, tmp_path):
    """The folder, its file, and AutoTokenizer of what is written have the ids of the file, with what is around them."""
    told = []
    by_folder = HuggingfaceTokenizer.load(str(folder), backend="huggingface", report=told.append)
    by_file = HuggingfaceTokenizer.load(str(folder / "tokenizer.json"), backend="huggingface")
    assert by_folder.fingerprint() == by_file.fingerprint()
    (tmp_path / "checkpoint").mkdir()
    by_folder.write(tmp_path / "checkpoint")
    (tmp_path / "checkpoint/config.json").write_text(json.dumps({"model_type": made.model_type}))
    theirs = AutoTokenizer.from_pretrained(tmp_path / "checkpoint")
    agrees = True
    for text in NASTY:
        ids = by_folder.encode([text]).ids.tolist()
        assert ids == by_file.encode([text]).ids.tolist() == made.core.encode(text, add_special_tokens=False).ids
        whole = made.core.encode(text).ids
        assert whole == [*by_folder.around[0], *ids, *by_folder.around[1]][: len(whole)]
        agrees &= theirs(text)["input_ids"] == whole
    assert agrees == (not [line for line in told if "anew" in line])


def test_llama_cpp_gives_equal_ids(made, folder, tmp_path):
    """A GGUF file of the tokenizer has the same ids in llama.cpp, or a sentence tells where it differs."""
    try:
        remarks = read_vocabulary(folder, size=SIZE).remarks
    except ConfigurationError:
        return
    core = made.core
    network = network_of(LLAMA)
    write_gguf(model_of(network, tmp_path, core, **FIELDS), tmp_path / "model.gguf", "f16")
    texts = [text for text in NASTY if text.strip() and len(core.encode(text).ids) < 60]
    if remarks:
        texts = [
            text for text in texts if not text.startswith((" ", "\u2581")) and unicodedata.is_normalized("NFC", text)
        ]
    prompts = [*texts, *(core.encode(text).ids for text in texts)]
    found = likeliest(tmp_path / "model.gguf", prompts, core)
    for text, of_text, of_ids in zip(texts, found[: len(texts)], found[len(texts) :], strict=True):
        assert of_text == pytest.approx(of_ids), text
