"""What a run tells of the data that it reads."""

from __future__ import annotations

import json

import pytest

from holdfast.bootstrap import build
from holdfast.configs.settings_layers import load_settings
from tests.support.command_line import corpus, tiny


def train(home, *more):
    """Train on the corpus below ``home``; return the lines of ``metrics.jsonl``."""
    overrides = tiny(
        home / "corpus.jsonl",
        f"run.dir={home / 'run'}",
        "data.on_error=skip",
        "data.holdout=0",
        "monitors=[jsonl]",
        *more,
    )
    build(load_settings([], overrides, {}).settings).run()
    return [json.loads(line) for line in (home / "run/metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("mode", ["cache", "stream"])
def test_a_run_goes_on_without_a_bad_record_and_counts_it(tmp_path, mode):
    """With ``skip`` the last step tells of one record left out and of what was read; a resumed run counts it once."""
    path = corpus(tmp_path)
    good = path.read_bytes()
    path.write_bytes(b'{"id": -1}\n' + good)
    settings = (f"data.mode={mode}", "state_store.every=0")
    first = train(tmp_path, *settings, "run.budget.steps=3")[-1]
    assert (first["step"], first["rejected"], first["read_retries"]) == (3, 1, 0)
    assert first["bytes_read"] >= len(good)
    again = train(tmp_path, *settings, "run.budget.steps=5")
    assert [line["step"] for line in again] == [1, 2, 3, 4, 5]
    assert again[-1]["rejected"] == 1
    looked_at = again[-1]["bytes_read"] <= path.stat().st_size  # at the first records, for fields that are not used
    assert looked_at if mode == "cache" else again[-1]["bytes_read"] > 0
    rejected = (tmp_path / "run/rejected.jsonl").read_text().splitlines()
    assert len(rejected) == 1
    assert "'text' is missing" in json.loads(rejected[0])["reason"]
