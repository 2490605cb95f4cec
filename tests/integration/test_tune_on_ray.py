"""Searches on the machines of a Ray cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.bootstrap.operations.study_facts import study_facts
from holdfast.bootstrap.operations.tune_study import share_of_task, tune_on_ray
from holdfast.domain.errors import ConfigurationError
from tests.support.command_line import corpus, run, tiny


@pytest.mark.parametrize(
    ("machines", "num_tasks", "share"),
    [
        ([{"CPU": 8.0, "GPU": 2.0}], 2, {"num_cpus": 4, "num_gpus": 1}),
        ([{"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0, "GPU": 4.0}], 1, {"num_cpus": 8, "num_gpus": 4}),
        ([{"CPU": 2.0}], 4, {"num_cpus": 1, "num_gpus": 0}),
        ([{"CPU": 2.0}, {}], 2, {"num_cpus": 1, "num_gpus": 0}),
    ],
)
def test_tasks_share_the_cluster(machines, num_tasks, share):
    """Each task gets its part of the cluster, but no more than one machine has, and one processor at least."""
    assert share_of_task(machines, num_tasks) == share


def test_without_ray_there_is_one_sentence(monkeypatch):
    """A machine without Ray is told which package to install."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=r'pip install "holdfast-lm\[ray\]"'):
        tune_on_ray([], 2, print)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_search_on_ray_is_that_of_two_workers(tmp_path, monkeypatch):
    """Two tasks of Ray train the trials that two workers of one command train."""
    pytest.importorskip("ray", reason="needs ray")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    courses = []
    for name, option in (("ray", "--ray"), ("here", "--workers")):
        home = tmp_path / name
        home.mkdir()
        corpus(home)
        (home / "space.yaml").write_text("optimizer.learning_rate: {low: 1e-4, high: 1e-1, log: true}\n")
        settings = tiny(Path("corpus.jsonl"), "run.name=search", "run.budget.steps=4", "evaluation.every=2")
        words = ["tune", "--space", "space.yaml", "--trials", "3", option, "2", *settings]
        process = run(*words, cwd=home, timeout=400)
        assert process.returncode == 0, process.stdout + process.stderr
        facts = study_facts(home / "runs/search")
        courses.append((facts.parallel, [(trial.parameters, trial.measurements) for trial in facts.trials]))
    assert courses[0] == courses[1]
