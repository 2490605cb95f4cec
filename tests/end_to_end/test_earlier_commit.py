"""A run folder outlives the program that began it."""

from __future__ import annotations

import json

import pytest

from tests.support.earlier_commit import RUN, compare, has_commit, weights

COMMITS = {
    "cache": ("1a00ec1", []),
    "stream": (
        "2e080cd",
        [
            "data.mode=stream",
            "data.shuffle_tokens=8192",
            "data.holdout=0.01",
            "optimizer.batch_size=8",
            "run.name=default",
        ],
    ),
}
SHORT = [
    "run.budget.steps=300",
    "data.sequence_length=64",
    "optimizer.algorithm=adamw",
    "optimizer.learning_rate=3e-3",
    "tokenizer.vocabulary_size=512",
    "model.config.hidden_size=48",
    "model.config.intermediate_size=96",
    "model.config.num_hidden_layers=2",
    "evaluation.max_tokens=4096",
    "sample.max_new_tokens=1",
]
"""The default run of that commit, except that its model and its text are smaller and it ends sooner."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mode", COMMITS)
def test_a_run_of_an_earlier_commit_continues_bit_for_bit(mode, tmp_path):
    """Killed under an earlier commit and continued by this one, the run ends with that commit's own weights."""
    commit, changes = COMMITS[mode]
    if not has_commit(commit):
        pytest.skip(f"this clone has no commit {commit}, or there is no git")
    whole, continued = compare(commit, [*SHORT, *changes], tmp_path)
    events = [json.loads(line) for line in (continued / RUN / "events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "RunStarted"] == [0, 100]
    assert weights(continued) == weights(whole)
