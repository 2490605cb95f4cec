"""A shard of rubbish among the data of a run."""

from __future__ import annotations

import json
import random
import sysconfig
from itertools import pairwise
from pathlib import Path

import pytest

from holdfast.adapters.tokenizer.memory import MemoryTokenizer
from holdfast.bootstrap import build
from holdfast.configs.settings_layers import load_settings
from holdfast.domain.data.holdout import Holdout
from holdfast.domain.data.sample_order import unit_order
from holdfast.domain.events import EvaluationCompleted, RolledBack, RunStarted, StepCompleted
from tests.support.command_line import SAME_RHYTHM

SEED, ROWS, LENGTH = 1234, 16, 64
CHARACTERS = ROWS * LENGTH - 1  # a document is a batch: as many bytes, and its end-of-text
STEPS, EVERY, PATIENCE = 260, 20, 3
FIRST, LAST = 191, 210  # batches of rubbish
HOLDOUT = Holdout(0.05, SEED)


def documents():
    """Return pieces of the standard library's sources in no order, those to train on and those that are held out."""
    chance, text, pieces = random.Random(SEED), "", []
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    chance.shuffle(paths)
    while len(pieces) < 2 * STEPS:
        if len(text) < CHARACTERS:
            text += paths.pop().read_text("utf-8").encode("ascii", "ignore").decode()
        else:
            pieces.append(text[:CHARACTERS])
            text = text[CHARACTERS:]
    chance.shuffle(pieces)
    held = [piece for piece in pieces if HOLDOUT.holds_text(piece)]
    return [piece for piece in pieces if piece not in held], held


def rubbish():
    """Return documents of characters that are drawn alike, which tell nothing of each other."""
    chance, found = random.Random(SEED), []
    while len(found) <= LAST - FIRST:
        drawn = "".join(chr(chance.randrange(32, 127)) for _ in range(CHARACTERS))
        found += [] if HOLDOUT.holds_text(drawn) else [drawn]
    return found


def write_shards(folder, pieces, held):
    """Write ``pieces`` as files that a stream reads in this order, one of them being the batches of rubbish."""
    folder.mkdir()
    cuts = [0, 60, 120, FIRST - 1, LAST, LAST + 40, len(pieces)]
    order = unit_order(len(cuts) - 1, SEED, epoch=0).tolist()
    for number, (begin, end) in zip(order, pairwise(cuts), strict=True):
        shard = [*([] if begin else held), *pieces[begin:end]]
        (folder / f"{number}.jsonl").write_text("".join(json.dumps({"text": piece}) + "\n" for piece in shard))


def settings_of(home, data, name, *more):
    overrides = [
        "data.kind=files", f"data.path={home / data}", f"data.sequence_length={LENGTH}", "data.mode=stream",
        f"data.shuffle_tokens={ROWS * LENGTH}", f"data.holdout={HOLDOUT.fraction}", f"run.seed={SEED}",
        "model.kind=decoder", "model.hidden_size=64", "model.intermediate_size=176", "model.num_hidden_layers=2",
        "model.num_attention_heads=4", "model.num_key_value_heads=4", f"model.max_position_embeddings={LENGTH}",
        "model.compile=none", f"optimizer.batch_size={ROWS}", "optimizer.micro_batch=null", "optimizer.device=cpu",
        "optimizer.precision=fp32", "optimizer.learning_rate=1e-2", f"run.budget.steps={STEPS}",
        f"run.dir={home / name}", "monitors=[jsonl]", f"state_store.every={EVERY}", "evaluation.every=0",
        "evaluation.at_start=false", SAME_RHYTHM, *more,
    ]  # fmt: skip
    return load_settings([], overrides, {}).settings


class Outcome:
    """What a run on the shards of ``data`` came to: batches consumed by step, and its last evaluation."""

    def __init__(self, home, data, name, *more):
        self.consumed, self.starts, self.returns, self.evaluations = {}, [], [], []
        run = build(settings_of(home, data, name, *more), report=lambda _: None, tokenizer=MemoryTokenizer())
        run.subscribe(RunStarted, self.starts.append)
        run.subscribe(StepCompleted, self.on_step)
        run.subscribe(RolledBack, self.returns.append)
        run.subscribe(EvaluationCompleted, lambda event: self.evaluations.append(event.evaluation))
        self.end = run.run()
        self.events = [json.loads(line) for line in (home / name / "events.jsonl").read_text().splitlines()]

    def on_step(self, event):
        """Note which batch the step is of; what it was of before it was taken back is forgotten."""
        self.consumed[event.progress.step] = event.progress.cursor.samples // ROWS

    @property
    def loss(self):
        """Return the held-out loss at the end, in nats a byte."""
        return self.evaluations[-1].loss


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return a folder of clean shards and of those among which one is rubbish."""
    home = tmp_path_factory.mktemp("poisoned")
    pieces, held = documents()
    write_shards(home / "clean", pieces, held)
    write_shards(home / "poisoned", [*pieces[: FIRST - 1], *rubbish(), *pieces[LAST:]], held)
    return home


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_poisoned_shard_is_left_behind(home):
    """With the settings that are the defaults a run ends as on clean data, and without going back it does not."""
    clean, poisoned = Outcome(home, "clean", "a"), Outcome(home, "poisoned", "b")
    trusting = Outcome(home, "poisoned", "c", "recovery.health.spike=false")
    told = {outcome.evaluations[-1].num_targets for outcome in (clean, poisoned, trusting)}
    assert len(told) == 1, "the three were not measured on the same text"
    assert poisoned.loss <= 1.02 * clean.loss
    assert trusting.loss > 1.02 * clean.loss
    assert not clean.returns
    assert not trusting.returns
    assert len(poisoned.starts) == 1, "nobody started it again"
    assert [event["event"] for event in poisoned.events].count("RolledBack") == len(poisoned.returns) == 3
    back = (FIRST - 2) // EVERY * EVERY  # the checkpoint that the step behind it vouches for
    assert poisoned.end.health.returns == (back,) * 3
    passed = PATIENCE * (2**3 - 1)  # in the order of the data: what was found out three times and what was skipped
    behind = FIRST - 1 + passed
    expected = {step: step if step <= back else behind + step - back for step in range(1, STEPS + 1)}
    assert poisoned.consumed == expected
    assert behind - PATIENCE < LAST <= behind
