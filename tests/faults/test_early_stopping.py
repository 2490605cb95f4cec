"""Early stopping of real runs: killed or stopped at each evaluation, they end as an undisturbed one."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.forked_runs import FOLDER, stored_steps

SETTINGS = (
    "run.budget.steps=60",
    "evaluation.every=2",
    "evaluation.at_start=true",
    "evaluation.max_tokens=256",
    "state_store.keep=1",
    "optimizer.learning_rate=0.3",
    "optimizer.schedule.warmup_steps=2",
    "recovery.early_stopping.patience=3",
    "recovery.health.spike=false",
)


def end_of(home):
    """Return the last step, the best one, the state of patience, and the weights of both checkpoints."""
    last = stored_steps(home)[-1]
    folders = home / FOLDER / "checkpoints"
    patience = json.loads((folders / f"checkpoint-{last}/MANIFEST.json").read_text())["progress"]["early_stopping"]
    steps = (last, patience["best_step"])
    return steps, patience, [(folders / f"checkpoint-{step}/model.safetensors").read_bytes() for step in steps]


def stops(home):
    lines = (home / FOLDER / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == "StopRequested" and event["is_early"]]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_at_each_evaluation_stops_at_the_same_step(runs, home, number):
    """At each of its evaluations a run is killed once, and the next start ends with the same best checkpoint."""
    whole = home / "whole"
    assert runs.run(whole, *SETTINGS)["code"] == 0, (whole / "err.log").read_text()
    (stop,) = stops(whole)
    (last, best), *_ = end_of(whole)
    assert best < last == stop["step"] < 60
    assert f"best:       runs/default/checkpoints/checkpoint-{best}" in (whole / "out.log").read_text()
    code = -number if number == signal.SIGKILL else 128 + number
    for count in range(1, last // 2 + 2):
        place = home / f"killed-{count}"
        result = runs.run(place, *SETTINGS, at={"phase": "evaluation", "count": count, "number": number})
        assert result["code"] == code, (place / "err.log").read_text()
        assert runs.run(place, *SETTINGS)["code"] == 0, (place / "err.log").read_text()
        assert end_of(place) == end_of(whole)


def test_a_later_start_does_not_train_on(runs, home):
    """The same command ends with 0 and says why it does not train; with more patience it trains on and says that."""
    assert runs.run(home, *SETTINGS)["code"] == 0, (home / "err.log").read_text()
    end, before = end_of(home), (home / FOLDER / "metrics.jsonl").read_bytes()
    (home / "out.log").unlink()
    assert runs.run(home, *SETTINGS)["code"] == 0
    assert (end_of(home), (home / FOLDER / "metrics.jsonl").read_bytes()) == (end, before)
    assert "stopped early after step" in (home / "out.log").read_text()
    assert "before this start" in (home / "out.log").read_text()
    more = "recovery.early_stopping.patience=4"
    assert runs.run(home, *SETTINGS, more)["code"] == 0
    assert end_of(home)[0][0] > end[0][0]
    assert "it goes on, as recovery.early_stopping.patience is now 4" in (home / "err.log").read_text()
