"""The page on 8B models: what can be done without one, and the figures that it names."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch

from holdfast.bootstrap.stages.choose.memory_check import estimate_from_settings
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.sizes import shown_size
from tests.support.command_line import ROOT, corpus
from tests.support.followed_pages import commands_of, follow, text_of
from tests.support.small_tokenizers import small_tokenizer, write_tokenizer

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


def describe(folder, **fields):
    """Write a description and a small tokenizer into ``folder``, and no weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(LLAMA | fields))
    write_tokenizer(small_tokenizer("llama-bpe", vocabulary_size=390), folder)


@pytest.fixture
def home(tmp_path):
    """Return a folder with texts, the description of the model, and the configuration that ``init`` writes."""
    texts = corpus(tmp_path)
    (tmp_path / "texts").mkdir()
    shutil.copy(texts, tmp_path / "texts")
    describe(tmp_path / "llama")
    (init,) = (command for command in commands_of(PAGE) if " init " in command)
    assert "mine.yaml" in follow(init, tmp_path)
    return tmp_path


def checks():
    """Return the commands that the page gives before anything is downloaded."""
    return [line for line in commands_of(PAGE) if " doctor " in line or "--no-trial" in line]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what a machine without a GPU says")
def test_a_machine_that_is_too_small_is_told_so_before_a_download(home):
    """Without a GPU ``plan`` refuses in one sentence and ``doctor`` names the device, and neither reads weights."""
    plan, doctor = checks()
    said = follow(plan, home, code=2)
    assert "building it takes 30" in said or "optimizer.device is cuda" in said
    found = follow(doctor, home, code=1)
    assert re.search(r"^error +device ", found, re.MULTILINE)
    assert not [*(home / "llama").glob("*.safetensors")]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_plan_needs_no_weights(home):
    """With a description of a small model, the plan of the same configuration is printed without any weights."""
    describe(home / "llama", **SMALL)
    plan, _ = checks()
    said = follow(f"{plan} optimizer.device=cpu", home)
    assert "by part, by the formula: weights" in said
    assert "382 steps = " in said


def test_the_figures_of_the_page_are_those_that_plan_computes(home, monkeypatch):
    """The parts of the memory on the page are those of the formula for the settings on a GPU."""
    monkeypatch.chdir(home)
    words = ["model.path=llama", "data.path=texts"]
    settings = load_settings([ROOT / "configs/continue_8b_lora.yaml"], words, {}).settings
    hardware = {"optimizer.precision": "bf16", "model.attention": "varlen,sdpa,eager"}
    found = estimate_from_settings(
        settings, hardware, num_ranks=1, num_parameters=8_030_261_248, vocabulary_size=128_256, rows=4
    )
    names = ("weights", "gradients", "optimizer", "buffers", "activations", "loss")
    parts = ", ".join(f"{name} {shown_size(getattr(found, name))}" for name in names)
    assert f"by part, by the formula: {parts}\nat most {shown_size(found.peak)} of them at once" in text_of(PAGE)
    table = (ROOT / "docs/memory.md").read_text(encoding="utf-8")
    rows = re.findall(r"`(\w+)\.yaml` \|[^|]*\| ([\d.]+ GiB) \|", text_of(PAGE))
    assert len(rows) == 3
    for name, peak in rows:
        assert f"| {peak} |" in re.search(rf"^\| `{name}` .*$", table, re.MULTILINE)[0]
