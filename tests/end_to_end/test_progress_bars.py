"""Each bar of a run on a terminal, and the options for programs."""

from __future__ import annotations

import json
import math
import re

import pytest

from tests.support.command_line import SAME_RHYTHM, corpus, run, run_here, tiny
from tests.support.terminals import Terminal

SHORT = ("evaluation.every=0", "evaluation.at_start=false", "state_store.every=0", "run.budget.steps=2", SAME_RHYTHM)
LARGE = (
    "tokenizer.vocabulary_size=8000",
    "model.config.hidden_size=512",
    "model.config.intermediate_size=1024",
    "model.config.num_hidden_layers=4",
    "model.config.num_attention_heads=8",
    "evaluation.at_start=true",
    "evaluation.batch_size=2",
    "evaluation.max_tokens=20000",
)


def drawn(*arguments, cwd):
    """Return all that a command draws on a terminal of 120 columns, whose lines it does not exceed."""
    with Terminal(*arguments, cwd=cwd, columns=120) as terminal:
        assert terminal.process.wait(900) == 0, terminal.text[-3000:]
        terminal._reader.join(60)
        assert max(map(len, terminal.lines)) <= 120
        return terminal.text


def last_metrics(folder):
    """Return the last record of a step and the last one of an evaluation."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return tuple([record for record in records if name in record][-1] for name in ("loss", "eval_loss"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_bar_is_seen(tmp_path):
    """What takes more than two seconds in a run has a bar with its share; those that count bytes have a rate."""
    # Reading, saves, uploads and loading are over before they are drawn here: the tests of their parts cover them.
    settings = [*tiny(corpus(tmp_path, documents=6000)), *SHORT, *LARGE]
    first = drawn("train", *settings, cwd=tmp_path)
    for bar in [
        r"training the tokenizer, (counting words · \d+%|merging)",
        r"tokenizing [\d,.]+ MiB · \d+% · \d+ s",
        r"evaluating · \d+% · \d+ s",
    ]:
        assert re.search(bar, first), bar
    assert re.search(r" · [\d.,]+ (([KMG]i)?B|tokens)/s · \d+ s left", first)


@pytest.mark.slow
def test_a_program_gets_one_object(tmp_path):
    """With --json standard output is one JSON object with the figures of the run; with --quiet nothing else is said."""
    settings = tiny(corpus(tmp_path), *SHORT, "state_store.keep_best=1", "evaluation.every=2")
    process = run("train", "--json", *settings, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout)
    last, evaluation = last_metrics(tmp_path / "runs/default")
    assert (found["state"], found["step"], found["steps_taken"]) == ("finished", 2, 2)
    assert (found["tokens"], found["loss"]) == (last["tokens"], last["loss"])
    assert found["eval_loss"] == evaluation["eval_loss"]
    assert found["checkpoint"] == found["best"]["checkpoint"]
    assert found["checkpoint"].endswith("runs/default/checkpoints/checkpoint-2")
    assert found["try_next"][0].startswith("python -m application generate runs/default")
    quiet = run_here("train", "--json", "--quiet", *settings, "run.budget.steps=3", cwd=tmp_path)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    assert json.loads(quiet.stdout)["steps_taken"] == 1
    silent = run_here("train", "--quiet", *settings, "run.budget.steps=3", cwd=tmp_path)
    assert (silent.returncode, silent.stdout, silent.stderr) == (0, "", "")
    measured = run_here("evaluate", "runs/default", "--json", "--quiet", cwd=tmp_path)
    assert json.loads(measured.stdout)["loss"] == pytest.approx(json.loads(quiet.stdout)["eval_loss"])
    prepared = json.loads(run_here("prepare", "--json", "--quiet", *settings, cwd=tmp_path).stdout)
    assert prepared["tokens"] > 0 == prepared["new_tokens"]


def test_a_failure_is_an_object_too(tmp_path):
    """A run that cannot train prints its error as JSON on standard output, and as a sentence on standard error."""
    process = run_here("train", "--json", "--quiet", *tiny(tmp_path / "nowhere.jsonl", *SHORT), cwd=tmp_path)
    assert process.returncode == 3
    found = json.loads(process.stdout)
    assert found["state"] == "failed"
    assert f"error: {found['error']}" in process.stderr


def test_the_last_lines_are_aligned(tmp_path):
    """The figures of a run stand in one block of keys and values, each value in the same column, and are true."""
    process = run_here("train", *tiny(corpus(tmp_path), *SHORT, "evaluation.every=2"), cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    block = process.stdout.partition("\nsample:\n")[2].partition("\n\n")[2].splitlines()
    assert all(re.match(r"([a-z][a-z -]*: +|            )\S", line) and line[11] == " " != line[12] for line in block)
    values = {line[:12].rstrip(": "): line[12:] for line in block if line[0] != " "}
    assert [*values] == (
        ["run", "end", "tokens", "loss", "evaluation", "speed", "time", "goodput", "checkpoint", "report", "try next"]
    )
    last, evaluation = last_metrics(tmp_path / "runs/default")
    assert values["end"] == "finished 2 steps"
    assert values["loss"] == f"{last['loss']:.3f} nats/token in the last step"
    assert values["evaluation"].endswith(f"{evaluation['eval_loss']:.3f} nats/token")
    assert values["checkpoint"] == "runs/default/checkpoints/checkpoint-2  (for transformers)"
    assert math.isfinite(float(values["speed"].split()[0].replace(",", "")))
