"""A run folder outlives the program that began it."""

from __future__ import annotations

import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.earlier_commit import RUN, compare, has_commit, weights
from tests.support.planted_chats import SPECIAL, WORDS
from tests.support.small_tokenizers import small_tokenizer, write_tokenizer

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


BEGUN = "2e080cd"
FEW_STEPS = [
    *SHORT[1:],
    *(
        "run.budget.steps=120",
        "run.name=default",
        "state_store.every=30",
        "optimizer.batch_size=4",
        "evaluation.every=0",
    ),
]


def conversations():
    """Return records whose messages name their speakers, with other fields that are read today."""
    draw = random.Random(0).choice
    roles = ("user", "assistant") * 2
    return [
        {
            "system_prompt": draw(WORDS),
            "messages": [
                {"role": role, "name": draw(WORDS), "content": f"{draw(WORDS)} {number}", "loss_mask": number % 2}
                for role in roles
            ],
        }
        for number in range(200)
    ]


def chat_of_lines(home):
    (home / "chats.jsonl").write_text("".join(json.dumps(each) + "\n" for each in conversations()))
    return [f"data.path={home / 'chats.jsonl'}", "data.task=chat", "data.chat.template=chatml", SPECIAL]


def chat_of_datasets(home):
    (home / "chats").mkdir()
    chat_of_lines(home / "chats")
    chat = ["data.task=chat", "data.chat.template=chatml", SPECIAL]
    return ["data.kind=huggingface", f"data.path={home / 'chats'}", *chat]


def masked_tokens(home):
    draw = random.Random(0).randrange
    ids = [[draw(300) for _ in range(40)] for _ in range(300)]
    masks = [[1] * 30 + [0] * 10] * len(ids)
    pq.write_table(pa.table({"input_ids": ids, "attention_mask": masks}), home / "ids.parquet")
    (home / "tokenizer").mkdir()
    write_tokenizer(small_tokenizer("gpt-2"), home / "tokenizer")
    tokenizer = ["tokenizer.kind=huggingface", f"tokenizer.path={home / 'tokenizer'}"]
    return ["data.kind=tokens", f"data.path={home / 'ids.parquet'}", *tokenizer]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("data_of", [chat_of_lines, chat_of_datasets, masked_tokens])
def test_a_run_on_other_data_of_an_earlier_commit_continues_bit_for_bit(data_of, tmp_path):
    """What a record or row is read as when a run began is what it is read as when this commit continues it."""
    if not has_commit(BEGUN):
        pytest.skip(f"this clone has no commit {BEGUN}, or there is no git")
    data = data_of(tmp_path)
    common = [each for each in FEW_STEPS if "kind=tokens" not in data[0] or "vocabulary_size" not in each]
    whole, continued = compare(BEGUN, [*common, *data], tmp_path, step=75)
    events = [json.loads(line) for line in (continued / RUN / "events.jsonl").read_text().splitlines()]
    first, again = [event["step"] for event in events if event["event"] == "RunStarted"]
    assert first < again
    assert weights(continued) == weights(whole)
