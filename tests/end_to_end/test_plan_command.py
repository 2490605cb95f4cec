"""Planning a run with `plan`, as a user does."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import sys

import psutil
import pytest

from holdfast.bootstrap.cli.main import main
from holdfast.bootstrap.operations import plan_run, plan_trial
from holdfast.bootstrap.run_folder.layout import RunLayout
from holdfast.bootstrap.run_folder.record_file import read_record, replace_record, text_of
from tests.support.command_line import corpus, run, run_here, start, tiny, wait_until

LONGER = ["run.budget.steps=200", "state_store.every=100", "evaluation.every=100", "resources.auto_tune=false"]
DECODER = ["model.kind=decoder", "model.hidden_size=128", "model.num_hidden_layers=4", "model.num_attention_heads=4"]


def trial_here(command, _):
    """Do the trial of ``command`` in this process."""
    with contextlib.redirect_stdout(sys.stderr):
        return plan_trial.main(command[-1:]), ""


def test_a_plan_has_all_groups_and_leaves_no_run(tmp_path):
    """Memory, data, disk, time, cost and a packed row are printed, and only tokens and tokenizer stay."""
    settings, home = tiny(corpus(tmp_path), "run.budget.steps=30"), tmp_path / "home"
    home.mkdir()
    done = run("plan", *settings, "--steps", "4", "--price-per-hour", "36", "--json", cwd=home)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    room = 30 * 4 * 64  # rows are not always full
    assert (plan["data"]["steps"], plan["data"]["mode"]) == (30, "cache")
    assert 0.9 * room < plan["data"]["tokens"] <= room
    assert plan["data"]["epochs"] == pytest.approx(room / plan["data"]["tokens_there"])
    (peak,), (limit,) = plan["memory"]["peak_bytes"], plan["memory"]["limit_bytes"]
    assert 0 < plan["memory"]["formula_bytes"]["peak"] < peak < limit
    assert (plan["disk"]["checkpoints_kept"], plan["disk"]["peak_bytes"]) == (3, 4 * plan["disk"]["checkpoint_bytes"])
    assert plan["time"]["seconds"] == pytest.approx(sum(plan["time"]["parts"].values()), abs=0.01)
    assert plan["cost"]["total"] == pytest.approx(plan["time"]["seconds"] / 100, abs=1e-4)
    assert any(trained for row in plan["sample"] for document in row for _, trained in document)
    assert list(home.iterdir()) == []
    assert {path.name for path in (tmp_path / "cache").iterdir()} >= {"tokens", "tokenizers"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_finite_data_end_the_plan(tmp_path):
    """A run over one epoch is planned to the last row of its data, however long its budget is."""
    settings = tiny(corpus(tmp_path), "data.epochs=1", "run.budget.steps=1000000000", "model.compile=none")
    done = run("plan", *settings, "--steps", "4", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    rows = plan["data"]["tokens_there"] // 64
    assert (plan["data"]["steps"], plan["data"]["epochs"]) == (math.ceil(rows / 4), 1.0)
    assert run("train", *settings, "--quiet", cwd=tmp_path).returncode == 0
    assert RunLayout(tmp_path / "runs" / "default").newest_durable_step() == plan["data"]["steps"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_minutes_are_planned_to_their_end(tmp_path):
    """The steps of a budget in minutes are those whose forecast fills the time and does not exceed it."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=null", "run.budget.minutes=1")
    done = run("plan", *settings, "--steps", "4", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["data"]["steps"] > 10
    assert 40 < plan["time"]["seconds"] <= 60.01


def test_a_plan_without_a_trial_stores_no_tokens(tmp_path):
    """With --no-trial the formulas are printed for a person, what needs a trial is said, and no token is stored."""
    home = tmp_path / "home"
    home.mkdir()
    done = run_here("plan", *tiny(corpus(tmp_path), "state_store.keep_hours=1"), "--no-trial", cwd=home)
    assert done.returncode == 0, done.stderr
    for group in ("model:", "step:", "budget:", "data:", "memory:", "disk:", "time:", "cost:"):
        assert f"\n{group}" in f"\n{done.stdout}"
    assert "by part, by the formula: weights" in done.stdout
    assert "not known without a trial" in done.stdout
    assert "note:   checkpoints of state_store.keep_hours are not counted" in done.stdout
    assert "row 1 of 1, trained on what is in [[ ]]" in done.stdout
    assert list(home.iterdir()) == []
    assert not (tmp_path / "cache" / "tokens").exists()


def test_a_plan_of_a_run_that_exists_keeps_its_choices(tmp_path):
    """What the run decided for automatic settings when it began is planned with, whatever would be decided now."""
    automatic = ["data.sequence_length=auto", "optimizer.batch_size=auto", "run.budget.steps=2", "evaluation.every=0"]
    settings = tiny(corpus(tmp_path), *automatic)
    assert run_here("train", *settings, cwd=tmp_path).returncode == 0
    folder = tmp_path / "runs/default"
    record = read_record(folder)
    for name, value in (("data.mode", "stream"), ("data.sequence_length", "32"), ("optimizer.batch_size", "3")):
        record["auto"][name]["value"] = value
    replace_record(folder, text_of(record))
    done = run_here("plan", *settings, "--no-trial", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert (plan["data"]["mode"], plan["step"]["length"], plan["step"]["rows"]) == ("stream", 32, 3)


def test_ranks_of_another_launcher_are_planned_by_its_first_one(tmp_path, monkeypatch):
    """Each rank of torchrun may give the command: the first prints the plan for all of them, the others nothing."""
    words = ["plan", *tiny(corpus(tmp_path)), "distributed.kind=torch", "--no-trial", "--json"]
    refused = run_here(*words, cwd=tmp_path)
    assert refused.returncode == 2
    assert "set WORLD_SIZE to it" in refused.stderr
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert len(json.loads(run_here(*words, cwd=tmp_path).stdout)["memory"]["limit_bytes"]) == 2
    monkeypatch.setenv("RANK", "1")
    other = run_here(*words, cwd=tmp_path)
    assert (other.returncode, other.stdout) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["model.gradient_checkpointing=full", "optimizer.micro_batch=2"],
        ["model.lora.rank=4", "optimizer.precision=bf16"],
        ["optimizer.algorithm=lion", "model.loss=plain"],
    ],
    ids=["plain", "recomputed", "adapters", "lion"],
)
def test_settings_alone_give_the_formula_of_the_built_model(words, tmp_path, monkeypatch):
    """The memory by part is the same from the settings as from the model that the trial builds."""
    monkeypatch.setattr(plan_trial, "_SECONDS", 0.0)  # no time is looked at here
    monkeypatch.setattr(plan_run, "run_in_child", trial_here)
    settings = [*tiny(corpus(tmp_path), *words), "--json"]
    both = [run_here("plan", *settings, *more, cwd=tmp_path) for more in (["--no-trial"], ["--steps", "4"])]
    assert [done.returncode for done in both] == [0, 0], both[1].stderr
    found, expected = (json.loads(done.stdout)["memory"]["formula_bytes"] for done in both)
    assert found == pytest.approx(expected)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["optimizer.batch_size=100000000000"], "optimizer.batch_size is 100,000,000,000"),
        (["model.config.hidden_size=200000", "model.config.num_hidden_layers=100"], "no setting makes it fit"),
        (["distributed.kind=torch"], "plan starts the processes of its trial itself"),
        (["--no-trial", "--price-per-hour", "3"], "--price-per-hour needs the time of a trial"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(words, sentence, tmp_path, capsys, monkeypatch):
    """A run that cannot work is refused in one sentence with code 2, before a token or a folder is made."""
    monkeypatch.chdir(tmp_path)
    settings = tiny(corpus(tmp_path))
    before = set(tmp_path.iterdir())
    assert main(["plan", *settings, *words]) == 2
    assert sentence in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == before


@pytest.mark.slow
def test_a_signal_leaves_no_trial(tmp_path):
    """A signal during the trial ends the command and its run, and the folder of the trial is removed."""
    home = tmp_path / "home"
    home.mkdir()
    process = start("plan", *tiny(corpus(tmp_path)), cwd=home)
    wait_until(lambda: list(home.glob(".plan-*/trial/LOCK")), process, "no trial was started")
    (child,) = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert not child.is_running()
    assert list(home.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "decoder", "streamed"])
def test_the_run_that_follows_takes_the_planned_memory(kind, tmp_path):
    """The peak of memory is within 10 % of the plan; the time, which needs a quiet machine, has a benchmark."""
    settings = tiny(corpus(tmp_path, documents=600), *LONGER)
    if kind == "decoder":
        settings = [word for word in settings if not word.startswith("model.")] + DECODER
    settings += ["data.mode=stream"] if kind == "streamed" else []
    planned = run("plan", *settings, "--json", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    assert run("train", *settings, "--quiet", cwd=tmp_path).returncode == 0
    lines = (tmp_path / "runs" / "default" / "metrics.jsonl").read_text().splitlines()
    peak = max(json.loads(line).get("memory_bytes", 0) for line in lines)
    assert json.loads(planned.stdout)["memory"]["peak_bytes"][0] == pytest.approx(peak, rel=0.10)
