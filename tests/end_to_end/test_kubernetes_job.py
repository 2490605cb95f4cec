"""The pods of ``launch kubernetes``, as processes with a network of their own."""

from __future__ import annotations

import time

import pytest

from tests.support.command_line import Hold, corpus, losses, run_here, tiny, wait_for_step
from tests.support.pods import Pods, can_start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_start(), reason="needs root and network namespaces"),
]
GPUS = ["--gpus", "0", "--processes", "1"]


@pytest.fixture
def pods(tmp_path):
    """Return a function that makes the pods of a run with some settings."""
    made = []

    def make(*settings):
        file = tmp_path / "job.yaml"
        process = run_here(
            *["launch", "kubernetes", "--nodes", "2", "--image", "x", "--output", str(file), *GPUS, *settings],
            cwd=tmp_path,
        )
        assert process.returncode == 0, process.stderr
        made.append(Pods(file, tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.remove()


def test_a_run_survives_the_loss_of_a_pod(pods, tmp_path):
    """Pods meet although their names are known late, a pod that is deleted has all save, and new pods go on."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=20", "state_store.every=0", "recovery.grace_seconds=15")
    assert run_here("train", *settings, "run.name=undisturbed", cwd=tmp_path).returncode == 0
    hold, folder = Hold(tmp_path), tmp_path / "runs/moved"
    hold.behind(10)
    job = pods(*settings, "run.name=moved", hold.settings)
    first, second = job.start(0), job.start(1)
    time.sleep(10)
    assert (first.poll(), second.poll()) == (None, None)
    job.publish()
    wait_for_step(folder, 10, first)
    job.delete(second)
    hold.behind(18)  # the first pod is not asked to stop by a signal, so it would wait there
    codes = [process.wait(timeout=job.grace_seconds) for process in (second, first)]
    assert codes == [143, 143], job.logs()
    (saved,) = folder.glob("checkpoints/*/COMMIT")
    assert saved.parent.name in {f"checkpoint-{step}" for step in range(10, 18)}
    hold.release()
    again = [job.start(0), job.start(1)]
    job.publish()
    assert [process.wait(timeout=200) for process in again] == [0, 0], job.logs()
    assert losses(folder) == pytest.approx(losses(tmp_path / "runs/undisturbed"), rel=5e-6)


def test_a_mistake_ends_each_pod_with_its_code(pods, tmp_path):
    """The rule of the Job that ends it for a mistake sees the exit code of the run."""
    job = pods(*tiny(tmp_path / "nothing.jsonl"))
    both = [job.start(0), job.start(1)]
    job.publish()
    assert [process.wait(timeout=200) for process in both] == [3, 3], job.logs()
