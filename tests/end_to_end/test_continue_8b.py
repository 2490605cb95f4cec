"""The page on 8B models: what can be done without one, and the figures that it names."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from holdfast.bootstrap.wiring.settings_estimate import estimate_from_settings
from holdfast.configs.settings_layers import load_settings
from tests.support.command_line import ROOT, corpus
from tests.support.followed_pages import commands_of, follow, text_of

PAGE = "docs/continue-8b.md"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
"""The description of Llama 3.1 8B, with the plain form of its positions."""
SMALL = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 4}
END = "<|end_of_text|>"
"""The token of the stand-in tokenizer that ends a document."""


def describe(folder, texts, **fields):
    """Write a description and a small tokenizer into ``folder``, and no weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | fields))
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core.train([str(texts)], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=[END]))
    core.save(str(folder / "tokenizer.json"))
    words = {"eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(words))


@pytest.fixture
def home(tmp_path):
    """Return a folder with texts, the description of the model, and the configuration that ``init`` writes."""
    texts = corpus(tmp_path)
    (tmp_path / "texts").mkdir()
    shutil.copy(texts, tmp_path / "texts")
    describe(tmp_path / "llama", texts)
    (init,) = (command for command in commands_of(PAGE) if " init " in command)
    assert "mine.yaml" in follow(init, tmp_path)
    return tmp_path


def checks():
    """Return the commands that the page gives before anything is downloaded."""
    return [line for line in commands_of(PAGE) if " doctor " in line or "--no-trial" in line]


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what a machine without a GPU says")
def test_a_machine_that_is_too_small_is_told_so_before_a_download(home):
    """Without a GPU ``plan`` refuses in one sentence and ``doctor`` names the device, and neither reads weights."""
    plan, doctor = checks()
    said = follow(plan, home, code=2)
    assert "building it takes 30" in said or "optimizer.device is cuda" in said
    found = follow(doctor, home, code=1)
    assert re.search(r"^error +device ", found, re.MULTILINE)
    assert {path.name for path in (home / "llama").iterdir()} == {"config.json", "tokenizer.json", "tokenizer_config.json"}


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_plan_needs_no_weights(home):
    """With a description of a small model, the plan of the same configuration is printed without any weights."""
    describe(home / "llama", home / "corpus.jsonl", **SMALL)
    plan, _ = checks()
    said = follow(f"{plan} optimizer.device=cpu", home)
    assert "by part, by the formula: weights" in said
    assert "382 steps = " in said


def test_the_figures_of_the_page_are_those_that_plan_computes(home, monkeypatch):
    """The parts of the memory on the page are those of the formula for the settings on a GPU."""
    monkeypatch.chdir(home)
    settings = load_settings([ROOT / "configs/continue_8b_lora.yaml"], ["model.path=llama", "data.path=texts"], {}).settings
    hardware = {"optimizer.precision": "bf16", "model.attention": "varlen,sdpa,eager"}
    found = estimate_from_settings(
        settings, hardware, num_ranks=1, num_parameters=8_030_261_248, vocabulary_size=128_256, rows=4
    )
    shown = dict(re.findall(r"(\w+) ([\d.]+) GB", re.search(r"by the formula: (.*)", text_of(PAGE))[1]))
    names = ("weights", "gradients", "optimizer", "buffers", "activations", "loss")
    assert {name: float(shown[name]) for name in names} == {name: round(getattr(found, name) / 1e9, 1) for name in names}
    table = (ROOT / "docs/memory.md").read_text(encoding="utf-8")
    for name, peak in re.findall(r"`(\w+)\.yaml` \|[^|]*\| ([\d.]+) GB", text_of(PAGE)):
        assert f"| {peak} GB |" in re.search(rf"^\| `{name}` .*$", table, re.MULTILINE)[0]
    assert f"{found.peak / 1e9:.1f} GB" in text_of(PAGE)
