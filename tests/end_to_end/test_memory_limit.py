"""A real shortage of memory on a CPU: the operating system refuses, not a fake."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from command_line import corpus, environment, losses, tiny

# The run is told its limit in bytes above what it holds once its model is built, so that the shortage is the step's.
CHILD = """
import resource, sys
from pathlib import Path
import psutil
from bootstrap import build
from configs.layers import load_settings
from domain.events import RunStarted, StepCompleted

headroom, skip, *overrides = sys.argv[1:]
settings = load_settings([], overrides, {}).settings
run = build(settings)

def limit(event):
    if event.progress.step == 2:
        held = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (held + int(headroom), resource.RLIM_INFINITY))

if int(headroom):
    run.subscribe(StepCompleted, limit)
if skip == "skip":
    from application.feed import Feed
    take, calls = Feed.next, []
    def lossy(feed):
        calls.append(1)
        if len(calls) == 20:
            take(feed)
        return take(feed)
    Feed.next = lossy
run.run()
"""


def train(home, headroom, skip="keep"):
    """Train 60 steps with ``headroom`` bytes of address space above what the first two steps took (0: no limit)."""
    home.mkdir()
    settings = tiny(
        corpus(home),
        f"run.dir={home / 'run'}",
        "run.budget.steps=60",
        "state_store.every=0",
        "evaluation.at_start=false",
        "evaluation.every=0",
        "evaluation.max_tokens=2048",
        "data.sequence_length=256",
        "optimizer.batch_size=32",
    )
    command = [sys.executable, "-c", CHILD, str(headroom), skip, *settings]
    process = subprocess.run(
        command, cwd=home, env=environment(), capture_output=True, text=True, timeout=110, check=False
    )
    return process, home / "run"


@pytest.mark.timeout(300)
def test_a_memory_limit_changes_only_the_micro_batch(tmp_path):
    """Under RLIMIT_AS the run shrinks its micro-batch, finishes, and its losses stay within 1e-5 of the unlimited run.

    A control that skips one sample is caught by the same comparison.
    """
    free, folder = train(tmp_path / "free", 0)
    assert free.returncode == 0, free.stderr
    expected = losses(folder)
    tight, folder = train(tmp_path / "tight", 24 * 2**20)
    assert tight.returncode == 0, tight.stderr
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    sizes = [record["micro_batch"] for record in records if "micro_batch" in record]
    assert sizes[0] == 32
    assert sizes[4] < 32
    assert furthest(losses(folder), expected) < 1e-5
    skipped, folder = train(tmp_path / "skipped", 0, "skip")
    assert skipped.returncode == 0, skipped.stderr
    assert furthest(losses(folder), expected) > 1e-5


def furthest(found, expected):
    """Return the largest relative difference; the same steps must be there."""
    assert found.keys() == expected.keys()
    return max(abs(found[step] - loss) / loss for step, loss in expected.items())
