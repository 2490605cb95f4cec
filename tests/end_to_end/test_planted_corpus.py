"""A corpus in which known records break known rules, prepared and killed."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

from holdfast.adapters.token_cache.disk import DiskTokenCache
from holdfast.application.data.shard_meta import ShardDocuments
from tests.support.command_line import run_here, start
from tests.support.planted_corpus import planted

SETTINGS = """\
data:
  kind: files
  path: raw.jsonl
  mode: cache
  dedup: minhash
  holdout: 0.05
  validation:
    max_rejected: 0.2
    fields:
      url: {type: text, required: true, pattern: "^https?://"}
      year: {type: integer, min: 1900}
      lang: {one_of: [en, de]}
      id: {unique: true}
  transforms:
    - {kind: language, options: {languages: [en]}}
    - gopher_quality
    - gopher_repetition
    - c4
    - fineweb
    - {kind: pii, options: {action: drop}}
    - {kind: secrets, options: {action: drop}}
    - {kind: decontaminate, options: {files: [evaluation.jsonl]}}
tokenizer: {kind: train, vocabulary_size: 1000}
"""


@pytest.fixture
def corpus(tmp_path):
    made = planted(200)
    (tmp_path / "raw.jsonl").write_text(made.lines())
    (tmp_path / "evaluation.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in made.evaluation))
    (tmp_path / "settings.yaml").write_text(SETTINGS)
    return made


def prepared(folder):
    """Return the used documents and the left out records of the cache in ``folder``, by number, and all its bytes."""
    [dataset] = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    cache = DiskTokenCache(folder, dataset.name)
    metas = [cache.meta(shard) for shard in cache.shards()]
    starts = [0]
    for line in Path(folder.parent / "raw.jsonl").read_bytes().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    number_of = {start: number for number, start in enumerate(starts)}
    used = {number_of[place] for meta in metas for place in ShardDocuments.of(meta).positions.tolist()}
    rejected = {number_of[each["position"]]: each["rule"] for meta in metas for each in meta["rejected"]}
    content = {path.relative_to(dataset): path.read_bytes() for path in sorted(dataset.rglob("*")) if path.is_file()}
    assert sum(meta["records"] for meta in metas) == len(used) + sum(sum(meta["drops"].values()) for meta in metas)
    return used, rejected, content


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_planted_record_is_found_and_no_other_is_lost(tmp_path, corpus):
    """Each record that breaks a rule is left out for it, all others are used, and the counts add up."""
    result = run_here("prepare", "--config", "settings.yaml", "data.cache.dir=cache", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    used, rejected, content = prepared(tmp_path / "cache")
    wrong = {
        number: (rule, rejected.get(number))
        for number, rule in corpus.broken.items()
        if not rejected.get(number, "").startswith(rule)
    }
    assert wrong == {}
    assert set(rejected) == set(corpus.broken)
    assert used == set(range(len(corpus.records))) - set(corpus.broken)

    some, killed = random.Random(0), 0
    command = ["prepare", "--config", "settings.yaml", "data.cache.dir=killed", "data.workers=1"]
    while killed < 5:
        process = start(*command, cwd=tmp_path)
        time.sleep(some.uniform(3, 12))
        killed += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert run_here(*command, cwd=tmp_path).returncode == 0
    assert prepared(tmp_path / "killed") == (used, rejected, content)
