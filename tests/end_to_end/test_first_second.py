"""A run has a story from its very beginning on."""

from __future__ import annotations

import json
import time

import pytest

from tests.support.command_line import corpus, run_here, start, tiny, wait_until

RUN = "runs/default"


def test_a_run_killed_at_its_very_beginning_is_explained_and_starts_again(tmp_path):
    """Killed as soon as run.json is there, a run is told as crashed before it trained, and binds no later start."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=1", "evaluation.at_start=false")
    process = start("train", *settings, cwd=tmp_path)
    record = tmp_path / RUN / "run.json"
    wait_until(record.exists, process, "run.json was not written")
    process.kill()
    process.communicate()
    assert json.loads(record.read_text())["start"]["is_first"]
    told = run_here("explain", RUN, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert f"{RUN} · crashed · step 0 of 1" in told.stdout
    assert "kill -9, a lack of memory" in told.stdout
    other = run_here("train", *settings, "model.config.hidden_size=64", cwd=tmp_path)
    assert other.returncode == 0, other.stderr
    assert "finished" in run_here("explain", RUN, cwd=tmp_path).stdout


def test_a_first_start_that_fails_is_explained(tmp_path):
    """A start that ends with an error before it trains leaves its reason, and a masked secret stays masked."""
    assert run_here("train", *tiny(tmp_path / "nowhere.jsonl"), cwd=tmp_path).returncode == 3
    told = run_here("explain", RUN, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert " · failed · step 0" in told.stdout
    assert "nowhere.jsonl" in told.stdout


def test_a_resume_that_fails_keeps_what_was_recorded(tmp_path):
    """A later start that ends before it trains is told, and all that run.json said before stays as it was."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=1", "evaluation.at_start=false")
    assert run_here("train", *settings, cwd=tmp_path).returncode == 0
    before = json.loads((tmp_path / RUN / "run.json").read_text())
    assert before.pop("start")["phase"] == "training"
    corpus(tmp_path, seed=1)
    process = run_here("train", *settings, "run.budget.steps=2", cwd=tmp_path)
    after = json.loads((tmp_path / RUN / "run.json").read_text())
    assert process.returncode == 4
    assert after.pop("start")["error"].startswith("StateError")
    assert after | {"hash": before["hash"]} == before
    assert " · failed · step 1" in run_here("explain", RUN, cwd=tmp_path).stdout


@pytest.mark.slow
def test_run_json_is_there_within_seconds(tmp_path):
    """The record of a run is there long before its data are tokenized or its model is built."""
    began = time.monotonic()
    process = start("train", *tiny(corpus(tmp_path)), cwd=tmp_path)
    wait_until((tmp_path / RUN / "run.json").exists, process, "run.json was not written")
    took = time.monotonic() - began
    process.kill()
    process.communicate()
    assert took < 5.0  # a machine under load; half a second on a quiet one
