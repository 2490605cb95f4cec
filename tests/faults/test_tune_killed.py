"""A search that is killed, with its trials or without them, ends as one that nothing disturbed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from holdfast.bootstrap.operations.study_facts import study_facts
from tests.support.command_line import corpus, environment, tiny

pytestmark = pytest.mark.slow

SPACE = """
optimizer.learning_rate: {low: 1e-4, high: 1e-1, log: true}
optimizer.batch_size: {choices: [2, 4]}
optimizer.weight_decay: {low: 0, high: 0.3}
"""
FOLDER = "runs/search"


def arguments(home, *more, trials=12):
    """Return the arguments of a search with trials of some seconds."""
    (home / "space.yaml").write_text(SPACE)
    settings = tiny(
        Path("corpus.jsonl"),
        "run.name=search",
        "run.budget.steps=12",
        "run.report=false",
        "data.sequence_length=16",
        "model.config.hidden_size=16",
        "model.config.num_attention_heads=2",
        "model.config.intermediate_size=32",
        "model.config.num_hidden_layers=1",
        "optimizer.micro_batch=2",
        "optimizer.schedule.warmup_steps=2",
        "evaluation.every=4",
        "evaluation.at_start=false",
        "evaluation.max_tokens=512",
        "state_store.every=3",
        "resources.auto_tune=false",
        "recovery.health.spike=false",
        "recovery.supervisor.first_pause_seconds=0",
        "tune.sampler_options.n_startup_trials=4",
        "tune.pruner_options.n_startup_trials=3",
    )
    return ["tune", "--space", "space.yaml", "--trials", str(trials), *settings, *more]


def start(home, words):
    """Start the search in ``home``; its output is added to log.txt."""
    with (home / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "application", *words],
            cwd=home,
            env=environment() | {"OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )


def workers_of(process):
    try:
        return [child for child in psutil.Process(process.pid).children() if child.status() != psutil.STATUS_ZOMBIE]
    except psutil.NoSuchProcess:
        return []


def result_of(home):
    """Return everything that a disturbed search must have in common with an undisturbed one."""
    facts = study_facts(home / FOLDER)
    course = [
        (trial.number, trial.state, trial.parameters, trial.measurements, trial.value, trial.tokens, trial.note)
        for trial in facts.trials
    ]
    checkpoints = {}
    for folder in sorted((home / FOLDER).glob("trial-????")):
        last = max(folder.glob("checkpoints/checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
        states = {path.name: path.read_bytes() for path in last.glob("*.safetensors")}
        assert {"model.safetensors", "optimizer.safetensors"} <= states.keys()
        checkpoints[folder.name] = (last.name, states, (folder / "verdicts.jsonl").read_bytes())
    return course, facts.best.number, (home / FOLDER / "best.yaml").read_bytes(), checkpoints


def kill(process, target):
    """Kill the command, one of its workers, or both; return whether it was still there."""
    while target != "command" and not (workers := workers_of(process)):
        if process.poll() is not None:
            return False
        time.sleep(0.02)
    if target != "command":
        workers[0].kill()
    if target != "worker":
        process.kill()
        process.wait()
    return True


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("searches")
    corpus(home)
    return home


@pytest.fixture(scope="module")
def undisturbed(home):
    """Return the result of a search that nothing disturbs, and its seconds."""
    place = home / "whole"
    place.mkdir()
    corpus(place)
    began = time.monotonic()
    process = start(place, arguments(place))
    assert process.wait(900) == 0, (place / "log.txt").read_text()
    return result_of(place), time.monotonic() - began


def disturbed(place, words, targets, chance, length):
    """Run the search with a kill of each of ``targets`` at a random moment; return the number of kills."""
    process, kills, waiting = start(place, words), 0, list(targets)
    while waiting:
        deadline = time.monotonic() + chance.uniform(0.15, 1.0) * length / len(targets)
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if process.poll() is not None:
            break
        kills += kill(process, waiting.pop(0))
        if process.poll() is not None:
            process = start(place, words)
    assert process.wait(900) == 0, (place / "log.txt").read_text()
    return kills


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [0, 1])
def test_kills_change_no_bit(home, undisturbed, seed):
    """Killed five times, a search of 12 trials has the same course, best trial, settings and bytes as undisturbed."""
    chance = random.Random(seed)
    place = home / f"killed-{seed}"
    place.mkdir()
    corpus(place)
    targets = ["command", "worker", "both", "command", "worker"]
    chance.shuffle(targets)
    whole, seconds = undisturbed
    assert disturbed(place, arguments(place), targets, chance, 0.8 * seconds) == len(targets)
    assert result_of(place) == whole
    states = {state for _, state, *_ in whole[0]}
    assert {str(state) for state in states} == {"complete", "pruned"}
    log = (place / "log.txt").read_text()
    assert "pruned at step" in log


@pytest.mark.timeout(1800)
def test_the_workers_of_two_commands_change_no_bit(home):
    """Two commands on one folder, one of which is killed, end as one command with two workers."""
    results = []
    for name, commands in (("two-workers", 1), ("two-commands", 2)):
        place = home / name
        place.mkdir()
        corpus(place)
        words = arguments(place, "tune.parallel=2", trials=8)
        if commands == 1:
            processes = [start(place, [*words, "--workers", "2"])]
        else:
            processes = [start(place, words), start(place, words)]
            while not list((place / FOLDER).glob("trial-*/verdicts.jsonl")):
                time.sleep(0.05)
            processes[0].kill()
            processes[0].wait()
            processes[0] = start(place, words)
        assert [process.wait(900) for process in processes] == [0] * commands, (place / "log.txt").read_text()
        results.append(result_of(place))
    assert results[0] == results[1]


@pytest.mark.timeout(600)
def test_a_stop_saves_the_trials(home):
    """SIGTERM ends the command with its code and a checkpoint of each open trial, which has not ended then."""
    place = home / "stopped"
    place.mkdir()
    corpus(place)
    words = arguments(
        place,
        "run.budget.steps=4000",
        "evaluation.every=1000",
        "tune.pruner=none",
        "tune.pruner_options=null",
        trials=1,
    )
    process = start(place, words)
    metrics = place / FOLDER / "trial-0000/metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size > 3000):
        assert process.poll() is None, (place / "log.txt").read_text()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 128 + signal.SIGTERM, (place / "log.txt").read_text()
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    saved = sorted(path.name for path in (place / FOLDER / "trial-0000/checkpoints").iterdir())
    assert f"checkpoint-{max(steps)}" in saved
    (trial,) = study_facts(place / FOLDER).trials
    assert not trial.has_ended
