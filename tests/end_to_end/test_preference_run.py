"""Runs on preferences, as a user starts them."""

from __future__ import annotations

import json
import random

import pytest

from holdfast.domain.data.holdout import Holdout
from holdfast.domain.training.preference_record import preference_of, preference_text
from tests.support.command_line import losses, run, run_here, start, wait_for_step
from tests.support.file_faults import files_under
from tests.support.planted_chats import WORDS, of_a_minute

STEPS = 60
TWO = "distributed.processes=2"


def write_pairs(path, number=300):
    """Write prompts with the words in capitals, which are preferred, and the same words as they are."""
    chance = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(number):
            words = " ".join(chance.choices(WORDS, k=chance.randint(1, 4)))
            record = {"prompt": f"Say {words}", "chosen": words.upper(), "rejected": words}
            file.write(json.dumps(record) + "\n")


def metrics(folder):
    """Return all figures of each step."""
    found = {}
    for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        found.setdefault(record["step"], {}).update(record)
    return found


def settings_of(home, name="run", *more):
    return of_a_minute(
        home,
        name,
        f"data.path={home / 'pairs.jsonl'}",
        "data.task=preference",
        "data.chat.template=plain",
        "data.sequence_length=128",
        "data.holdout=0.1",
        "tokenizer.vocabulary_size=400",
        *("model.hidden_size=32", "model.intermediate_size=64", "model.num_hidden_layers=2"),
        "model.num_attention_heads=2",
        "optimizer.batch_size=8",
        "evaluation.every=20",
        "evaluation.at_start=true",
        f"run.budget.steps={STEPS}",
        "state_store.every=10",
        *more,
    )


@pytest.fixture
def home(tmp_path):
    write_pairs(tmp_path / "pairs.jsonl")
    return tmp_path


def test_the_margin_grows_on_planted_preferences(home):
    """The run begins at log 2 with equal rewards, and ends with the held-out pairs in the right order."""
    done = run_here("train", *settings_of(home), cwd=home)
    assert done.returncode == 0, done.stderr
    assert "computed the reference log-probabilities of 300 pairs" in done.stderr
    assert done.stderr.index(" --------\n") < done.stderr.index("step 1/")
    steps = metrics(home / "run")
    assert steps[1]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert abs(steps[1]["reward_margin"]) < 1e-3
    assert steps[STEPS]["reward_margin"] > 0.5
    evaluated = [steps[step]["eval_reward_margin"] for step in range(0, STEPS + 1, 20)]
    assert abs(evaluated[0]) < 1e-3
    assert evaluated == sorted(evaluated)
    assert steps[STEPS]["eval_reward_accuracy"] > 0.9
    assert "% of the pairs in the right order" in done.stdout
    again = run_here("train", *settings_of(home, "other"), cwd=home)
    assert "computed the reference" not in again.stderr


def test_a_run_ends_when_all_pairs_are_in_the_right_order(home):
    """With ``eval_reward_accuracy`` a run stops once its highest value is no longer exceeded, and keeps that model."""
    early = "recovery.early_stopping={patience: 2, metric: eval_reward_accuracy}"
    process = run_here("train", *settings_of(home, "run", "evaluation.every=5", "state_store.keep=1", early), cwd=home)
    assert process.returncode == 0, process.stderr
    found = {step: each["eval_reward_accuracy"] for step, each in metrics(home / "run").items() if "eval_loss" in each}
    best = max(found, key=lambda step: (found[step], -step))
    assert 0 < best < max(found) < STEPS
    assert f"eval_reward_accuracy has not improved in 2 evaluations, best {found[best]:.4f} at step {best}" in (
        process.stdout + process.stderr
    )
    inspected = run_here("inspect", "run", "--best", cwd=home)
    assert f"checkpoint-{best}\n" in inspected.stdout
    listed = json.loads(run_here("runs", ".", "--json", cwd=home).stdout)
    assert listed["runs"][0]["eval_reward_accuracy"] == found[max(found)]
    assert "in order" in run_here("runs", ".", cwd=home).stdout
    assert "--best" in process.stdout.partition("try next:")[2]
    report = json.loads(run_here("report", "run", "--json", cwd=home).stdout)["runs"][0]
    best_evaluation = report["figures"]["best_evaluation"]
    assert (best_evaluation["metric"], best_evaluation["step"]) == ("eval_reward_accuracy", best)


def test_a_run_in_minutes_learns_preferences(home):
    """The time of a step is measured without pairs, after the reference log-probabilities, which count as well."""
    done = run_here("train", *settings_of(home, "run", "run.budget.steps=null", "run.budget.minutes=0.01"), cwd=home)
    assert done.returncode == 0, done.stderr
    assert "computed the reference log-probabilities of 300 pairs" in done.stderr
    assert metrics(home / "run")[1]["loss"] == pytest.approx(0.6931, abs=1e-3)


def test_prepare_computes_the_column_and_evaluate_reads_it(home):
    """After prepare no run computes it; evaluate measures the pairs that the run held out, and no others."""
    done = run_here("prepare", *settings_of(home), cwd=home)
    assert done.returncode == 0, done.stderr
    assert "computed the reference log-probabilities of 300 pairs" in done.stderr
    again = run_here("prepare", *settings_of(home), cwd=home)
    assert "computed" not in again.stderr
    done = run_here("train", *settings_of(home), cwd=home)
    assert done.returncode == 0, done.stderr
    assert "computed" not in done.stderr
    told = json.loads(run_here("evaluate", str(home / "run"), "--json", cwd=home).stdout)
    last = metrics(home / "run")[STEPS]
    assert told["loss"] == pytest.approx(last["eval_loss"], rel=1e-6)
    assert told["reward_margin"] == pytest.approx(last["eval_reward_margin"], rel=1e-6)
    assert told["pairs"] > 10
    other = run_here("evaluate", str(home / "run"), f"data.path={home / 'pairs.jsonl'}", cwd=home)
    assert other.returncode == 3
    assert "which has read the data of the run only" in other.stderr
    report = run_here("report", str(home / "run"), "--markdown", cwd=home).stdout
    assert "reward accuracy" in report


def test_held_out_pairs_that_are_all_too_long_end_the_start(home):
    """No step is made that the first evaluation would end, and the sentence names the length of a row."""
    found = {True: [], False: []}  # by whether a pair is held out
    for number in range(200):
        for prompt in ("Say it", "long " * 60):
            record = {"prompt": prompt, "chosen": f"A{number}", "rejected": f"b{number}"}
            is_held_out = Holdout(0.1, 1).holds_text(preference_text(preference_of(record)))
            if is_held_out == (prompt != "Say it"):
                found[is_held_out].append(json.dumps(record))
    (home / "long.jsonl").write_text("\n".join(found[True][:3] + found[False][:60]), encoding="utf-8")
    more = ("run.seed=1", "evaluation.at_start=false", f"data.path={home / 'long.jsonl'}")
    done = run_here("train", *settings_of(home, "run", *more), cwd=home)
    assert done.returncode == 3
    assert "every pair held out to evaluate on has more than 128 tokens" in done.stderr
    assert "step 1/" not in done.stderr


def test_another_reference_model_is_another_run(home):
    """A run whose initial weights have changed is not resumed, as its reference would be another model."""
    base = home / "base"
    for seed in (1, 2):
        text = [
            each
            for each in settings_of(home, "base", f"run.seed={seed}", "run.budget.steps=1", "--fresh")
            if not each.startswith(("data.task", "data.chat", "evaluation", "data.path"))
        ]
        (home / "plain.txt").write_text(" ".join(WORDS * 40), encoding="utf-8")
        done = run_here("train", *text, f"data.path={home / 'plain.txt'}", "data.holdout=0", cwd=home)
        assert done.returncode == 0, done.stderr
        tuned = [each for each in settings_of(home, "tuned") if not each.startswith(("model.", "tokenizer."))]
        paths = (f"model.path={base}/checkpoints/checkpoint-1", "run.budget.steps=2")
        done = run_here("train", *tuned, *paths, cwd=home)
        if seed == 1:
            assert done.returncode == 0, done.stderr
    assert done.returncode == 4
    assert "reference model" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_killed_three_times_ends_with_the_same_bytes(home):
    """Killed by SIGKILL at three steps and started again, the run ends with the weights and losses of the other."""
    more = ("model.lora.rank=4",)
    done = run("train", *settings_of(home, "whole", *more), cwd=home)
    assert done.returncode == 0, done.stderr
    killed = settings_of(home, "killed", f"run.cache_dir={home / 'cache-2'}", *more)
    for step in (15, 31, 52):
        process = start("train", *killed, cwd=home)
        wait_for_step(home / "killed", step, process, 200)
        process.kill()
        process.communicate()
    done = run("train", *killed, cwd=home)
    assert done.returncode == 0, done.stderr
    folders = [home / name / f"checkpoints/checkpoint-{STEPS}" for name in ("whole", "killed")]
    whole, again = map(files_under, folders)
    weights = [name for name in whole if name.endswith(".safetensors")]
    assert len(weights) > 1
    assert {name: again[name] for name in weights} == {name: whole[name] for name in weights}
    assert losses(home / "killed") == losses(home / "whole")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sharding", ["ddp", "fsdp2"])
def test_two_processes_learn_what_one_learns(home, sharding):
    """The losses, the margins and the evaluations of two ranks are those of one process."""
    one, two = settings_of(home, "one"), settings_of(home, "two", TWO, f"optimizer.sharding={sharding}")
    two += [f"run.cache_dir={home / 'cache-2'}"]
    for settings in (one, two):
        done = run("train", *settings, cwd=home)
        assert done.returncode == 0, done.stderr
        assert "computed the reference log-probabilities of 300 pairs" in done.stderr
    expected, found = (metrics(home / name) for name in ("one", "two"))
    for step, figures in expected.items():
        for name in ("loss", "reward_margin", "eval_loss", "eval_reward_margin"):
            if name in figures:
                assert found[step][name] == pytest.approx(figures[name], rel=1e-4, abs=1e-4), (step, name)


@pytest.mark.slow
def test_a_drill_kills_a_run_on_preferences(home):
    """The drills know pairs too: after a kill the run goes on as if nothing had happened."""
    done = run("drill", "kill", *settings_of(home), cwd=home)
    assert done.returncode == 0, done.stdout + done.stderr
