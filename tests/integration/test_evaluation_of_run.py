"""A run measures the sources of its mixture and sets of its own, and writes samples."""

from __future__ import annotations

import json
import re

import pytest

from tests.support.command_line import SAME_RHYTHM, corpus, run_here, tiny

RUN = "runs/default"
SETS = "evaluation.sets={own: {path: own.jsonl}}"
PROMPTS = ("evaluation.prompts=[the model, small]", "evaluation.sampling.max_new_tokens=4")


@pytest.fixture
def home(tmp_path):
    for name, seed in (("first", 1), ("second", 2), ("own", 3)):
        (tmp_path / name).mkdir()
        corpus(tmp_path / name, seed=seed, documents=60).rename(tmp_path / f"{name}.jsonl")
    return tmp_path


def train(home, *settings, steps=8):
    shared = (SAME_RHYTHM, "evaluation.every=4", "state_store.every=4", f"run.budget.steps={steps}")
    process = run_here("train", *tiny(home / "first.jsonl", *shared, *settings), cwd=home)
    assert process.returncode == 0, process.stderr
    return process


def mixture(home):
    sources = {name: {"kind": "files", "path": str(home / f"{name}.jsonl")} for name in ("first", "second")}
    return ["data.kind=mixture", f"data.sources={json.dumps(sources)}"]


def train_mixture(home, *settings, steps=8):
    own = [setting for setting in tiny(home / "first.jsonl") if not setting.startswith(("data.kind=", "data.path="))]
    shared = (SAME_RHYTHM, "evaluation.every=4", "state_store.every=4", f"run.budget.steps={steps}")
    process = run_here("train", *own, *mixture(home), *shared, *settings, cwd=home)
    assert process.returncode == 0, process.stderr
    return process


def lines(home, name="metrics.jsonl"):
    return [json.loads(line) for line in (home / RUN / name).read_text().splitlines()]


def evaluations(home):
    return [{key: each[key] for key in each if "eval_loss" in key} for each in lines(home) if "eval_loss" in each]


def of_training(home):
    return [(each["step"], each.get("loss"), each.get("eval_loss")) for each in lines(home)]


def test_parts_and_samples_leave_training_and_the_total_alone(home):
    """A mixture with sets and prompts has the losses and evaluations of one without, and figures of each part."""
    train_mixture(home)
    plain, sources = of_training(home), evaluations(home)
    assert [list(each) for each in sources] == [["eval_loss", "eval_loss/first", "eval_loss/second"]] * 3
    (home / RUN).rename(home / "plain")
    train_mixture(home, SETS, *PROMPTS)
    assert of_training(home) == plain
    parts = evaluations(home)
    assert [{key: each[key] for key in each if key != "eval_loss/own"} for each in parts] == sources
    assert parts[0]["eval_loss/own"] != parts[-1]["eval_loss/own"]
    assert all(min(each.values()) <= each["eval_loss"] <= max(each.values()) for each in sources)
    samples = lines(home, "samples.jsonl")
    expected = [(step, prompt) for step in (0, 4, 8) for prompt in ("the model", "small")]
    assert [(each["step"], each["prompt"]) for each in samples] == expected
    assert all(each["text"] for each in samples)


def test_the_command_shows_the_parts_of_the_run_s_last_evaluation(home):
    """``evaluate`` gives the run's own figures for the total, each source and each set, as a table and as JSON."""
    train_mixture(home, SETS)
    last = evaluations(home)[-1]
    process = run_here("evaluate", RUN, "--json", cwd=home)
    found = json.loads(process.stdout)
    assert found["loss"] == pytest.approx(last["eval_loss"], rel=1e-6)
    assert {f"eval_loss/{name}": pytest.approx(part["loss"], rel=1e-6) for name, part in found["parts"].items()} == {
        name: loss for name, loss in last.items() if name != "eval_loss"
    }
    table = run_here("evaluate", RUN, cwd=home).stdout
    assert f"{last['eval_loss/own']:.4f}" in table
    assert [line.split()[0] for line in table.splitlines()[1:]] == ["part", "first", "second", "own"]
    other = run_here("evaluate", RUN, "--data", "own.jsonl", "--json", cwd=home)
    assert other.returncode == 0, other.stderr
    assert json.loads(other.stdout)["parts"] == {}


def test_a_run_without_held_out_documents_has_its_sets(home):
    """With no hold-out the total is that of the sets, so the best checkpoint is known, and ``evaluate`` works."""
    train(home, "data.holdout=0", SETS, "state_store.keep_best=1")
    for each in evaluations(home):
        assert each["eval_loss"] == each["eval_loss/own"]
    best = run_here("evaluate", RUN, "--best", "--json", cwd=home)
    assert json.loads(best.stdout)["loss"] == pytest.approx(min(each["eval_loss"] for each in evaluations(home)))


def test_a_file_that_is_trained_on_is_refused(home):
    """A set that holds a file of the data ends the start before any work is done, whatever its path looks like."""
    settings = (*tiny(home / "first.jsonl"), "evaluation.sets={own: {path: [own.jsonl, first.jsonl]}}")
    process = run_here("train", *settings, cwd=home)
    assert process.returncode == 2
    assert "evaluation.sets.own holds" in process.stderr
    assert "first.jsonl" in process.stderr
    assert "a set is never trained on" in process.stderr
    assert "tokeniz" not in process.stderr


def test_samples_of_steps_that_are_taken_again_are_replaced(home):
    """A run that is continued, or rolled back to a step, has the texts of each evaluation once."""
    train(home, *PROMPTS)
    first = lines(home, "samples.jsonl")
    shared = (SAME_RHYTHM, "evaluation.every=4", "state_store.every=4", "run.budget.steps=12", *PROMPTS)
    again = run_here("train", "--from-step", "4", *tiny(home / "first.jsonl", *shared), cwd=home)
    assert again.returncode == 0, again.stderr
    second = lines(home, "samples.jsonl")
    assert [each["step"] for each in second] == [step for step in (0, 4, 8, 12) for _ in range(2)]
    assert [(each["step"], each["text"]) for each in second[:4]] == [(each["step"], each["text"]) for each in first[:4]]


def test_stages_begin_where_the_run_says(home):
    """A stage of few tokens changes the sources from its step on, and one beyond the end is said to come never."""
    stages = "[{after_tokens: 1024, weights: {second: 0.5}}, {after_tokens: 9999, weights: {first: 1}}]"
    process = train_mixture(home, f"data.stages={stages}")
    assert re.findall(r"stage +(\d .*)", process.stderr) == [
        "2 begins in step 5, after 1,024 tokens",
        "3 begins in step 40, after 10,048 tokens: NEVER, the run has 8 steps",
    ]


def test_a_set_may_have_its_text_under_another_name(home):
    """A rule for the text of the training data asks no other field of a set than its own text."""
    rows = [json.loads(line)["text"] for line in (home / "own.jsonl").read_text().splitlines()]
    (home / "own.csv").write_text("body\n" + "".join(f'"{text}"\n' for text in rows))
    rule = "data.validation.fields={text: {min_length: 1}}"
    train(home, rule, "evaluation.sets={own: {path: own.csv, text_field: body}}", steps=1)
    assert "eval_loss/own" in evaluations(home)[0]
