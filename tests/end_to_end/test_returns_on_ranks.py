"""Losses that go astray on two ranks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.command_line import SAME_RHYTHM, corpus, environment, losses, tiny

STEPS = 45
ENGINES = {"ddp": [], "fsdp2": ["optimizer.sharding=fsdp2"]}


def train(home, name, *more, num_ranks):
    """Train with losses that go astray; return what was told of each return: from which step to which, and why."""
    told = environment() | {"RANKS": str(num_ranks), "OMP_NUM_THREADS": "1"}
    settings = tiny(
        home / "corpus.jsonl", f"run.name={name}", f"run.budget.steps={STEPS}", "evaluation.at_start=false",
        "evaluation.every=20", "recovery.health.window=12", SAME_RHYTHM, *more,
    )  # fmt: skip
    outcome = subprocess.run(
        [sys.executable, "-m", "tests.support.planted_ranks", "train", *settings],
        cwd=home, env=told, text=True, capture_output=True, timeout=550, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    events = map(json.loads, (home / "runs" / name / "events.jsonl").read_text().splitlines())
    return [(event["from_step"], event["step"], event["tokens"]) for event in events if event["event"] == "RolledBack"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder with a corpus."""
    home = tmp_path_factory.mktemp("returns")
    corpus(home)
    return home


@pytest.fixture(scope="module")
def alone(home):
    """Return what one process tells of its returns."""
    returns = train(home, "alone", num_ranks=1)
    assert [(begin, end) for begin, end, _ in returns] == [(14, 10), (35, 30)]
    return returns


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ENGINES)
def test_all_ranks_go_back_as_one_process_does(home, alone, engine):
    """A loss of one rank that is no number, or a spike, takes all back to the step, and each loss is one process's."""
    assert train(home, engine, *ENGINES[engine], num_ranks=2) == alone
    expected, found = losses(home / "runs/alone"), losses(home / "runs" / engine)
    assert [*found] == [*expected] == [*range(1, STEPS + 1)]
    assert max(expected.values()) < 7, "a loss of what was taken back is still told"
    for step, loss in expected.items():
        assert found[step] == pytest.approx(loss, rel=5e-6), step
