"""Trackers of a run that is killed and rolled back, and trackers whose server is away."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.black_hole import black_hole
from tests.support.command_line import (
    SAME_RHYTHM,
    Hold,
    corpus,
    environment,
    losses,
    run,
    start,
    tiny,
    wait_for_step,
    wait_until,
)
from tests.support.mlflow_server import MlflowServer, mlflow_server
from tests.support.tracker_readers import READERS, Reader, continued, dsn_in, mlflow_runs, synced

FOLDER = Path("runs/default")
STEPS = 45
PATIENCE = 300  # seconds
STARTS = (
    (8, 0, 8, 0.0),  # killed while the trackers open their sinks
    (26, 25, 28, 2.0),  # killed when they have metrics behind the newest checkpoint
    (32, 30, 43, 0.5),  # rolled back by a spike at step 35, when they have metrics behind step 30
    (44, 0, None, 30.0),
)
"""Of each start: the step to wait behind, the step that all trackers then have, the step of the kill (None: none),
and the seconds before that."""
PATIENCE = 300  # seconds


def train(home, settings):
    """Start a run whose losses go astray twice, so that it rolls back."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.planted_ranks", "train", *settings],
        cwd=home, env=environment() | {"RANKS": "1"}, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def are_at(step, readers, home):
    """Return whether all trackers have all metrics up to ``step``."""
    path = home / FOLDER / "trackers.json"
    sent = json.loads(path.read_text()) if path.exists() else {}
    steps = {key.partition(" ")[0]: reached for key, reached in sent.items()}
    return all(steps.get(reader.name, 0) >= step for reader in readers if reader.name != "prometheus")


def mentions(name, process):
    return [line for line in (process.stdout + process.stderr).splitlines() if name in line.lower()]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_tracker_has_each_step_once(tmp_path, postgres):
    """After three kills and two roll-backs each tracker has the metrics of the run's own record, each step once."""
    readers = [reader for reader in READERS if reader.is_installed]
    assert len(readers) > 1
    dsn_in(tmp_path).write_text(postgres.new_database())
    sections = ", ".join(["jsonl", *(reader.section(tmp_path) for reader in readers)])
    hold = Hold(tmp_path)
    settings = tiny(
        corpus(tmp_path), f"run.budget.steps={STEPS}", "recovery.health.window=12", f"monitors=[{sections}]",
        SAME_RHYTHM, hold.settings,
    )  # fmt: skip
    for first, caught_up, last, seconds in STARTS:
        hold.behind(first)
        process = train(tmp_path, settings)
        wait_for_step(tmp_path / FOLDER, first, process, PATIENCE)
        if caught_up:
            wait_until(lambda: are_at(caught_up, readers, tmp_path), process, "trackers are behind", PATIENCE)  # noqa: B023
            time.sleep(11)  # MLflow gets metrics with the first step that is ten seconds later
        if last is None:
            time.sleep(seconds)  # at its end the run waits for its trackers for 15 s only
            hold.release()
            _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, errors
            break
        hold.behind(last)
        wait_for_step(tmp_path / FOLDER, last, process, PATIENCE)
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    events = [json.loads(line)["event"] for line in (tmp_path / FOLDER / "events.jsonl").read_text().splitlines()]
    assert events.count("RunStarted") == 4
    assert events.count("RolledBack") >= 1
    assert sorted(losses(tmp_path / FOLDER)) == [*range(1, STEPS + 1)]
    assert [line for reader in readers for line in reader.differences(tmp_path)] == []
    names = [reader.name for reader in readers]
    made = {
        "mlflow": mlflow_runs(f"sqlite:///{tmp_path}/runs/mlflow.db") if "mlflow" in names else [],
        "wandb": synced(tmp_path) if "wandb" in names else [],
    }
    for name, runs in made.items():
        assert name not in names or len(runs) >= 3, f"nothing that {name} had was taken again"
        for tracked in runs:
            steps = [step for step, metric, _ in tracked.points if metric == "loss"]
            assert len(steps) == len(set(steps))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_mlflow_server_has_each_step_once(tmp_path):
    """A run that is killed and started again stands on a server, each step once."""
    with mlflow_server(tmp_path / "server") as server:
        hold = Hold(tmp_path)
        settings = tiny(corpus(tmp_path), f"monitors=[jsonl, {section_of(server)}]", SAME_RHYTHM, hold.settings)
        hold.behind(13)
        process = start("train", *settings, cwd=tmp_path)
        wait_for_step(tmp_path / FOLDER, 13, process, PATIENCE)
        time.sleep(5)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        hold.release()
        finished = run("train", *settings, cwd=tmp_path, timeout=PATIENCE)
        assert finished.returncode == 0, finished.stderr
        on_server = Reader("mlflow", "mlflow", lambda _: "", lambda _: continued(mlflow_runs(server.uri)))
        assert on_server.differences(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_server_that_dies_in_mid_run(tmp_path):
    """A run whose tracking server is killed ends with code 0, and one line names it; a later start sends the rest."""
    with mlflow_server(tmp_path / "server") as server:
        hold = Hold(tmp_path)
        settings = tiny(corpus(tmp_path), f"monitors=[jsonl, {section_of(server)}]", SAME_RHYTHM, hold.settings)
        hold.behind(8)
        process = start("train", *settings, cwd=tmp_path)
        wait_for_step(tmp_path / FOLDER, 8, process, PATIENCE)
        time.sleep(3)
        server.kill()
        hold.release()
        output, errors = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, errors
        assert len([line for line in (output + errors).splitlines() if "MLflow" in line]) == 1, output + errors
        server.start()
        again = run("train", *settings, "run.budget.steps=35", cwd=tmp_path, timeout=PATIENCE)
        assert again.returncode == 0, again.stderr
        on_server = Reader("mlflow", "mlflow", lambda _: "", lambda _: continued(mlflow_runs(server.uri)))
        assert on_server.differences(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_that_never_answers(tmp_path):
    """A run whose tracking server accepts and never answers ends with code 0 in time, and one line names it."""
    with black_hole() as server:
        settings = tiny(
            corpus(tmp_path), f"monitors=[jsonl, {{kind: mlflow, tracking_uri: 'http://127.0.0.1:{server.port}'}}]"
        )
        process = run("train", *settings, cwd=tmp_path, timeout=PATIENCE)  # waits for the tracker are 15 s of it
        assert server.num_connections > 0
    assert process.returncode == 0, process.stderr
    assert len(mentions("mlflow", process)) == 1, process.stdout + process.stderr
    assert sorted(losses(tmp_path / FOLDER)) == [*range(1, 31)]


def section_of(server: MlflowServer) -> str:
    return f"{{kind: mlflow, tracking_uri: '{server.uri}'}}"
