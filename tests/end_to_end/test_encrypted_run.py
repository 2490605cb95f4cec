"""A run whose tokens and checkpoints are encrypted, from its corpus to its erasure."""

from __future__ import annotations

import json

import numpy as np
from tokenizers import Tokenizer

from holdfast.domain.fault_tolerance.remedies import FRESH
from tests.support.command_line import corpus, run_here, tiny

CANARY = "quizzaciously xylophagous zugzwang"
KEY = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
ENCRYPTED = ("data.cache.encryption.key_from=env:RUN_KEY", "state_store.encryption.key_from=env:RUN_KEY")


def told_below(*folders):
    """Return all files below ``folders`` by their paths."""
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


def holding(files, secrets):
    return [path.name for path, data in files.items() if any(secret in data for secret in secrets)]


def ids_of(text, tokenizers):
    """Return the ids of ``text`` as a shard has them, by the one tokenizer that was trained."""
    (file,) = tokenizers.iterdir()
    tokenizer = Tokenizer.from_str(json.loads(file.read_text())["tokenizer"])
    return np.array(tokenizer.encode(text).ids, np.uint16).tobytes()


def test_a_run_leaves_no_word_and_is_erased_for_good(tmp_path, monkeypatch):
    """No file of the cache and the run has its words or their ids; once erased it cannot be resumed, and says why."""
    monkeypatch.setenv("RUN_KEY", KEY)
    path = corpus(tmp_path)
    with path.open("a") as file:
        file.write("".join(json.dumps({"id": 1000 + n, "text": f"the {CANARY} reads"}) + "\n" for n in range(3)))
    settings = tiny(path, "data.mode=cache", "data.holdout=0", "run.budget.steps=2", "state_store.every=1")
    trained = run_here("train", *settings, *ENCRYPTED, cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    secrets = [*(word.encode() for word in CANARY.split()), ids_of(f" {CANARY}", tmp_path / "cache/tokenizers")]
    files = told_below(tmp_path / "cache", tmp_path / "runs")
    assert {"tokens.bin", "optimizer.safetensors", "events.jsonl"} <= {path.name for path in files}
    assert holding(files, secrets) == []
    plain = run_here("prepare", *settings, cwd=tmp_path)
    assert plain.returncode == 0, plain.stderr
    assert holding(told_below(tmp_path / "cache/tokens"), secrets) == ["tokens.bin"]
    assert run_here("erase", "runs/default", "1", "2", "--yes", cwd=tmp_path).returncode == 0
    resumed = run_here("train", *settings, *ENCRYPTED, "run.budget.steps=3", cwd=tmp_path)
    assert resumed.returncode == 4
    assert f"were erased and none is left: start a new run with {FRESH}" in resumed.stderr
    assert run_here("audit", "runs/default", cwd=tmp_path).returncode == 0
