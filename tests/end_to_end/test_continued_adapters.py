"""Continued pre-training by adapters as it is configured for a model of 8 billion parameters, with a tiny one."""

from __future__ import annotations

import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.support.command_line import corpus, run_here
from tests.support.small_tokenizers import small_tokenizer, write_tokenizer

SMALLER = (
    *("optimizer.device=cpu", "data.sequence_length=32", "optimizer.batch_size=8", "run.budget.tokens=16384"),
    *("optimizer.learning_rate=3e-3", "state_store.every=40", "evaluation.max_tokens=2048"),
)
"""What the configuration is given for a machine without a GPU; everything else is as it ships."""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with text and a tiny Llama with its tokenizer."""
    home = tmp_path_factory.mktemp("continued")
    corpus(home)
    core = small_tokenizer("llama-bpe", vocabulary_size=390)
    config = LlamaConfig(
        vocab_size=core.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(home / "llama")
    write_tokenizer(core, home / "llama")
    return home


def test_the_configuration_teaches_a_model_and_leaves_its_base_alone(home):
    """As shipped but for its size, the run learns the text; checkpoints hold adapters only, and they merge."""
    before = (home / "llama/model.safetensors").read_bytes()
    paths = ("data.path=corpus.jsonl", "model.path=llama")
    done = run_here("train", "--config", "continue_8b_lora.yaml", *paths, *SMALLER, cwd=home)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (home / "runs/continue-8b-lora/events.jsonl").read_text().splitlines()]
    losses = [each["loss"] for each in events if each.get("event") == "EvaluationCompleted"]
    assert len(losses) >= 2
    assert losses[-1] < losses[0] - 0.5  # of the random weights; embeddings and head are not trained
    assert (home / "llama/model.safetensors").read_bytes() == before
    described = json.loads((home / "runs/continue-8b-lora/checkpoints/checkpoint-64/adapter_config.json").read_text())
    assert (described["r"], described["lora_alpha"]) == (128, 256)
    assert len(described["target_modules"]) == 7
    exported = run_here("export", "runs/continue-8b-lora", "continued", "--merged", cwd=home)
    assert exported.returncode == 0, exported.stderr
    model, tokenizer = (each.from_pretrained(home / "continued") for each in (AutoModelForCausalLM, AutoTokenizer))
    asked = tokenizer("the model ", return_tensors="pt")
    assert model.generate(**asked, max_new_tokens=4).shape[1] > asked["input_ids"].shape[1]
