"""The memory by the formula from settings alone agrees with the table of docs/memory.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import holdfast.configs
from holdfast.bootstrap.stages.choose.memory_check import described_model, estimate_from_settings, layers_between
from holdfast.configs.settings_layers import load_settings
from tests.support.command_line import ROOT

FOLDER = Path(holdfast.configs.__file__).resolve().parent
LLAMA = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
HUB = {
    "continue_8b_lora": (
        8_030_261_248,
        LLAMA | {"intermediate_size": 14_336, "num_hidden_layers": 32, "vocab_size": 128_256},
    ),
    "rtx4090": (
        8_190_735_360,
        LLAMA | {"model_type": "qwen3", "head_dim": 128, "intermediate_size": 12_288, "num_hidden_layers": 36,
                 "vocab_size": 151_936},
    ),
}  # fmt: skip
HUB["a100x4"] = HUB["rtx4090"]
"""The parameters and the description of models on the hub."""
ON_GPU = {"optimizer.precision": "bf16", "model.attention": "varlen,sdpa,eager"}


def estimate(name, folder, *words, hardware=ON_GPU):
    """Return the memory of the configuration ``name`` with the settings ``words``."""
    number, config = HUB.get(name, (None, None))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
        words = (f"model.path={folder}", *words)
    settings = load_settings([FOLDER / f"{name}.yaml"], words, {}).settings
    model = settings.model
    if number is None:
        number = described_model(settings).num_parameters
        number += 0 if model.tie_word_embeddings else model.vocab_size * model.hidden_size
    processes = getattr(settings.distributed, "processes", "auto")
    ranks = 1 if processes == "auto" else processes
    rows = settings.optimizer.micro_batch
    return estimate_from_settings(
        settings, hardware, num_ranks=ranks, num_parameters=number, vocabulary_size=300, rows=rows
    )


@pytest.mark.parametrize("name", ["continue_8b_lora", "rtx4090", "a100x4", "gqa_1b", "h200", "gpt2_124m_6gb"])
def test_a_ready_configuration_takes_what_the_table_says(name, tmp_path):
    """Precision, adapters, recomputed layers, the loss and DeepSpeed's file are counted as in docs/memory.md."""
    found = estimate(name, tmp_path)
    table = (ROOT / "docs/memory.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| `{name}` \|.*\| ([\d.]+) GiB \| ([\d.]+) GiB \|", table, re.MULTILINE)
    ranks = 4 if name == "a100x4" else 1
    assert found.peak / 2**30 == pytest.approx(float(row[1]), abs=0.15)
    assert found.host * ranks / 2**30 == pytest.approx(float(row[2]), abs=0.15)


def test_what_the_formula_does_not_know_is_not_estimated(tmp_path):
    """Weights in 4 bits, and adapters beside named layers only, give no estimate."""
    assert estimate("continue_8b_lora", tmp_path, "model.lora.quantize=4bit") is None
    assert estimate("continue_8b_lora", tmp_path, "model.lora.target_modules=[q_proj]") is None


def test_precision_and_attention_of_the_machine_count(tmp_path):
    """A mask for packed documents takes memory, and fp32 takes more than bf16 for activations."""
    masked = ON_GPU | {"model.attention": "sdpa,eager"}
    plain, more = (estimate("h200", tmp_path, hardware=each).activations for each in (ON_GPU, masked))
    assert plain < more
    assert plain < estimate("h200", tmp_path, hardware=masked | {"optimizer.precision": "fp32"}).activations


@pytest.mark.parametrize(("policy", "number"), [("none", 0), ("full", 1), ("every:3", 3), ("budget:2GB", 0)])
def test_a_policy_is_read(policy, number):
    """The number of layers between two that are recomputed follows from the policy."""
    assert layers_between(policy) == number
