"""GGUF files as llama.cpp itself reads them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from holdfast.adapters.shared.model_export.gguf_file import write_gguf
from tests.support.gguf_models import CONFIGS, SIZE, model_of, network_of
from tests.support.small_tokenizers import PATTERNS, TEXTS, sentencepiece_tokenizer, small_tokenizer

pytest.importorskip("gguf")
pytestmark = pytest.mark.slow

DRIVER = Path(__file__).parents[1] / "support/llama_cpp_driver.py"


def likeliest(path, prompts, core):
    """Return the logarithms of the probabilities of the likeliest next tokens by llama.cpp, by id, for each prompt."""
    if "LLAMA_CPP_PYTHON" not in os.environ:
        pytest.skip("there is no llama.cpp here: name an interpreter with the package xllamacpp LLAMA_CPP_PYTHON")
    command = [os.environ["LLAMA_CPP_PYTHON"], str(DRIVER), str(path), json.dumps(prompts), str(core.token_to_id("a"))]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout.splitlines()[-1])
    return [{int(number): logprob for number, logprob in each.items()} for each in found]


def logprobs_of(network, ids):
    with torch.no_grad():
        return network(torch.tensor([ids]), use_cache=False).logits[0, -1].float().log_softmax(0)


@pytest.mark.parametrize("name", CONFIGS)
def test_llama_cpp_computes_the_same(tmp_path, name):
    """The next tokens have the probabilities in llama.cpp that they have in transformers, within 1 %, for all types."""
    network = network_of(CONFIGS[name])
    write_gguf(model_of(network, tmp_path), tmp_path / "model.gguf", "f16")
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(0, SIZE - 3, (length,), generator=generator).tolist() for length in (1, 7, 40)]
    found = likeliest(tmp_path / "model.gguf", prompts, small_tokenizer("gpt-2"))
    for ids, theirs in zip(prompts, found, strict=True):
        ours = logprobs_of(network, ids)
        assert len(theirs) == 20
        for number, logprob in theirs.items():
            assert logprob == pytest.approx(float(ours[number]), abs=0.01)
        assert set(ours.topk(5).indices.tolist()) <= theirs.keys()


@pytest.mark.parametrize("split", [*PATTERNS, "sentencepiece"])
def test_llama_cpp_splits_text_alike(tmp_path, split):
    """A text has the next tokens in llama.cpp that the ids of our tokenizer have."""
    network = network_of(CONFIGS["llama"])
    core = sentencepiece_tokenizer() if split == "sentencepiece" else small_tokenizer(split)
    fields = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"} if split == "sentencepiece" else {}
    write_gguf(model_of(network, tmp_path, core, **fields), tmp_path / "model.gguf", "f16")
    texts = [text for text in TEXTS if len(core.encode(text).ids) < 60]
    assert len(texts) >= 4
    found = likeliest(tmp_path / "model.gguf", [*texts, *(core.encode(text).ids for text in texts)], core)
    for text, of_text, of_ids in zip(texts, found[: len(texts)], found[len(texts) :], strict=True):
        assert of_text == pytest.approx(of_ids), text
