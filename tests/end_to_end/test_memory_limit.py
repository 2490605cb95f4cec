"""A real shortage of memory on a CPU: the operating system refuses, not a fake."""

from __future__ import annotations

import json
import random
import string
import subprocess
import sys

import pytest

from tests.support.command_line import environment, losses, tiny

# The limit is set in bytes above what the process holds once it has evaluated, so that the shortage is a step's.
CHILD = """
import resource, sys
from pathlib import Path
import psutil
from holdfast.bootstrap import build
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.events import EvaluationCompleted

headroom, skip, *overrides = sys.argv[1:]
settings = load_settings([], overrides, {}).settings
run = build(settings)

def limit(event):
    held = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (held + int(headroom), resource.RLIM_INFINITY))

if int(headroom):
    run.subscribe(EvaluationCompleted, limit)
if skip == "skip":
    from holdfast.application.data.feed import Feed
    take, calls = Feed.next, []
    def lossy(feed, *waiting):
        batch = take(feed, *waiting)
        calls.append(batch)
        return batch if len(calls) > 1 else next(batch.split(batch.num_rows - 1))
    Feed.next = lossy
run.run()
"""

HEADROOM = 48 * 2**20


def uneven_corpus(folder):
    """Write documents of which each repeats two letters of its own, so that no row of tokens is like another."""
    generator = random.Random(0)
    texts = ["".join(generator.choices(generator.sample(string.ascii_letters, 2), k=900)) for _ in range(240)]
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def train(home, headroom, skip="keep"):
    """Train 60 steps with ``headroom`` bytes of address space above what an evaluation took (0: no limit)."""
    home.mkdir()
    settings = tiny(
        uneven_corpus(home),
        f"run.dir={home / 'run'}",
        "run.budget.steps=60",
        "state_store.every=0",
        "evaluation.every=0",
        "evaluation.max_tokens=2048",
        "evaluation.batch_size=1",
        "data.sequence_length=512",
        "optimizer.batch_size=8",
    )
    command = [sys.executable, "-c", CHILD, str(headroom), skip, *settings]
    # an arena of another thread is address space that malloc would fall back on, long before the limit is felt
    variables = environment() | {"MALLOC_ARENA_MAX": "1"}
    process = subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True, timeout=280, check=False)
    return process, home / "run"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_memory_limit_changes_only_the_micro_batch(tmp_path):
    """Under RLIMIT_AS losses stay within 1e-5 of the unlimited run's; a control that lacks one sample is caught."""
    free, folder = train(tmp_path / "free", 0)
    assert free.returncode == 0, free.stderr
    expected = losses(folder)
    tight, folder = train(tmp_path / "tight", HEADROOM)
    assert tight.returncode == 0, tight.stderr
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    sizes = [record["micro_batch"] for record in records if "micro_batch" in record]
    assert min(sizes) < 8, "memory never ran out"  # in which step it does is the allocator's affair
    assert furthest(losses(folder), expected) < 1e-5
    skipped, folder = train(tmp_path / "skipped", 0, "skip")
    assert skipped.returncode == 0, skipped.stderr
    assert furthest(losses(folder), expected) > 1e-5


def furthest(found, expected):
    """Return the largest relative difference; the same steps must be there."""
    assert found.keys() == expected.keys()
    return max(abs(found[step] - loss) / loss for step, loss in expected.items())
