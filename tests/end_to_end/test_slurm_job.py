"""Job scripts of ``launch slurm`` on a Slurm cluster of two nodes."""

from __future__ import annotations

import json

import psutil
import pytest

from tests.end_to_end.test_prepare_parts import write_corpus
from tests.support.command_line import Hold, corpus, losses, run_here, tiny
from tests.support.slurm_cluster import SlurmCluster, can_start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_start(), reason="needs root, and Slurm: apt-get install slurm-wlm munge"),
]
ON_TWO = ["--processes", "2", "--cpus", "2"]


@pytest.fixture(scope="module")
def cluster():
    """Yield a cluster for the tests of this file."""
    found = SlurmCluster()
    yield found
    found.remove()


def written(folder, name, *arguments):
    """Write the job file of ``launch slurm`` with ``arguments`` into ``folder``; return its path."""
    process = run_here("launch", "slurm", "--output", f"{name}.sh", *arguments, cwd=folder)
    assert process.returncode == 0, process.stderr
    return folder / f"{name}.sh"


def last_step(folder):
    """Return the last step in the metrics of a run, 0 if it has none."""
    path = folder / "metrics.jsonl"
    steps = [json.loads(line).get("step", 0) for line in path.read_text().splitlines()] if path.exists() else []
    return max(steps, default=0)


def checkpoints(folder):
    """Return the steps of the checkpoints of a run."""
    return sorted(int(path.parent.name.rpartition("-")[2]) for path in folder.glob("checkpoints/*/COMMIT"))


def test_a_run_goes_on_after_its_time_limit(cluster, tmp_path):
    """Slurm's own signal ahead of the limit saves the run and queues it again, and it ends as an undisturbed one."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=20", "state_store.every=0", "recovery.grace_seconds=5")
    assert run_here("train", *settings, "run.name=undisturbed", cwd=tmp_path).returncode == 0
    hold, folder = Hold(tmp_path), tmp_path / "runs/limited"
    hold.behind(10)
    file = written(tmp_path, "job", *ON_TWO, *settings, "run.name=limited", hold.settings)
    job = cluster.submit(file, "--time=2")
    log = tmp_path / f"holdfast-limited-{job}.log"
    cluster.wait(lambda: cluster.of_job(job, "Restarts") == "1", "the limit has not queued the job again")
    assert checkpoints(folder) == [10]
    assert "received SIGUSR1: saving after this step" in log.read_text()
    hold.release()
    cluster.begin_now(job)
    cluster.wait(lambda: cluster.of_job(job, "JobState") == "COMPLETED", "the job does not end")
    assert losses(folder) == pytest.approx(losses(tmp_path / "runs/undisturbed"), rel=5e-6)


def test_a_job_that_is_cancelled_has_saved(cluster, tmp_path):
    """Slurm sends SIGTERM to all processes and torchrun passes it on, which is one signal and no second one."""
    hold, folder = Hold(tmp_path), tmp_path / "runs/cancelled"
    hold.behind(10)
    settings = tiny(corpus(tmp_path), "run.budget.steps=1000", "state_store.every=0", "run.name=cancelled")
    job = cluster.submit(written(tmp_path, "job", *ON_TWO, *settings, hold.settings))
    cluster.wait(lambda: last_step(folder) == 10, "the run has not come to step 10")
    cluster.call("scancel", job)
    cluster.wait(lambda: cluster.of_job(job, "JobState") == "CANCELLED", "the job was not cancelled")
    cluster.wait(lambda: checkpoints(folder) == [10], "the run was not saved", 30)
    assert cluster.of_job(job, "Restarts") == "0"


def test_a_run_on_two_machines_survives_a_killed_rank(cluster, tmp_path):
    """The rank of the other machine ends too, the job is queued again, and both go on from the newest checkpoint."""
    settings = tiny(corpus(tmp_path), "run.budget.steps=20", "state_store.every=5")
    assert run_here("train", *settings, "run.name=undisturbed", cwd=tmp_path).returncode == 0
    hold, folder = Hold(tmp_path), tmp_path / "runs/killed"
    hold.behind(12)
    file = written(tmp_path, "job", "--nodes", "2", "--cpus", "1", *settings, "run.name=killed", hold.settings)
    job = cluster.submit(file)
    cluster.wait(lambda: last_step(folder) == 12, "the run has not come to step 12")
    # not by the run's name, which tests of other files use at the same time
    ranks = [each for each in psutil.process_iter(["cmdline"]) if hold.settings in (each.info["cmdline"] or [])]
    max(ranks, key=lambda each: each.create_time()).kill()
    hold.behind(18)
    cluster.wait(lambda: cluster.of_job(job, "Restarts") == "1", "the crash has not queued the job again")
    hold.release()
    cluster.begin_now(job)
    cluster.wait(lambda: cluster.of_job(job, "JobState") == "COMPLETED", "the job does not end")
    assert losses(folder) == pytest.approx(losses(tmp_path / "runs/undisturbed"), rel=5e-6)


def test_a_mistake_is_not_queued_again(cluster, tmp_path):
    """Data that are not there end the job with exit code 3."""
    settings = tiny(tmp_path / "nothing.jsonl", "run.name=mistaken")
    job = cluster.submit(written(tmp_path, "job", *ON_TWO, *settings))
    cluster.wait(lambda: cluster.of_job(job, "JobState") == "FAILED", "the job does not fail")
    assert cluster.of_job(job, "ExitCode") == "3:0"
    assert cluster.of_job(job, "Restarts") == "0"


def test_an_array_prepares_all_parts(cluster, tmp_path):
    """Each job of the array makes the shards of its number, and the one that ends last completes the data."""
    write_corpus(tmp_path / "corpus", files=3, documents=1500)
    settings = tiny(tmp_path / "corpus", "run.name=prepared", f"run.cache_dir={tmp_path / 'cache'}", "data.workers=1")
    file = written(tmp_path, "parts", "--command", "prepare", "--nodes", "3", "--cpus", "1", *settings)
    job = cluster.submit(file)
    logs = [tmp_path / f"holdfast-prepared-{job}_{number}.log" for number in range(3)]

    def endings():
        text = "".join(log.read_text() for log in logs if log.exists())
        return [text.count(ending) for ending in ("are left to other parts\n", "version: ")]

    cluster.wait(lambda: endings() == [2, 1], "the array does not end")
    again = run_here("prepare", "--finish", *settings, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "all of them were there already" in again.stdout
