"""Whatever is killed of two ranks and their launcher, nothing sleeps on, and the run comes to the same end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest

from tests.support.command_line import Hold, corpus, environment, losses, run, run_here, tiny, wait_for_step

KINDS = ("group", "slurm", "rank", "launcher")
TORCHRUN = ["-m", "holdfast.torchrun", "--standalone", "--nproc-per-node=2", "--shutdown-timeout=30"]
LONGEST = 60
STRIDE = 10


def begin(kind, settings, home):
    """Start two ranks in a session of their own, by torchrun for a kill of the ``kind`` that schedulers send."""
    by = TORCHRUN if kind == "slurm" else []
    command = [sys.executable, *by, "-m", "application", "train", *settings]
    with (home / "errors").open("a") as errors:
        return subprocess.Popen(
            command, cwd=home, env=environment(), stdout=errors, stderr=errors, text=True, start_new_session=True
        )


def kill(kind, launcher, chosen):
    """Do to the ``launcher`` and its ranks what the ``kind`` says; return all processes that there were."""
    ranks = psutil.Process(launcher.pid).children(recursive=True)
    pids = {"launcher": [launcher.pid], "rank": [rank.pid for rank in ranks[chosen : chosen + 1]]}
    if kind == "slurm":  # slurmstepd signals every process of the step
        for pid in [launcher.pid, *[rank.pid for rank in ranks]]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
    elif kind == "group":
        os.killpg(launcher.pid, signal.SIGKILL)
    for pid in pids.get(kind, []):
        os.kill(pid, signal.SIGKILL)
    return ranks


def assert_gone(launcher, ranks):
    """Have the launcher and all its ranks end by themselves within a minute."""
    if not ranks:  # killed before there was one
        launcher.kill()
    launcher.wait(timeout=LONGEST)
    _, left = psutil.wait_procs(ranks, timeout=LONGEST)
    alive = [process for process in left if process.status() != psutil.STATUS_ZOMBIE]
    for process in alive:
        process.kill()
    assert alive == []


ENGINES = {
    "ddp": "optimizer.sharding=ddp",
    "fsdp2": "optimizer.sharding=fsdp2",
    "tensor": "distributed.mesh.tensor=2",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_kills", "seed", "engine"),
    [
        pytest.param(2, 0, "ddp", marks=pytest.mark.timeout(600)),
        pytest.param(30, 1, "ddp", marks=pytest.mark.timeout(3600)),
        pytest.param(4, 2, "fsdp2", marks=pytest.mark.timeout(900)),
        pytest.param(4, 3, "tensor", marks=pytest.mark.timeout(900)),
    ],
)
def test_kills_leave_no_process_and_the_same_result(tmp_path, num_kills, seed, engine):
    """Whether a rank, the launcher, its group or all are killed, and when, the run ends as an undisturbed one."""
    chance, hold, folder = random.Random(seed), Hold(tmp_path), tmp_path / "runs/killed"
    steps = STRIDE * (num_kills + 1)
    settings = tiny(corpus(tmp_path), f"run.budget.steps={steps}", "distributed.processes=2", "evaluation.every=0")
    settings.append(ENGINES[engine])
    is_sample = num_kills == 2  # compared with one process, and ended by it: all is imported here already
    reference = [*settings, "run.name=undisturbed", *(["distributed.processes=1"] if is_sample else [])]
    assert (run_here if is_sample else run)("train", *reference, cwd=tmp_path).returncode == 0
    killed = [*settings, "run.name=killed", hold.settings]
    for number in range(num_kills):
        hold.behind(STRIDE * (number + 1))
        kind = KINDS[number % len(KINDS)]
        launcher = begin(kind, killed, tmp_path)
        if number % 3 == 2:  # while it starts: before, in and after the meeting of the ranks
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(timeout=chance.uniform(0.5, 8.0))
        else:
            wait_for_step(folder, STRIDE * (number + 1), launcher)
        assert_gone(launcher, kill(kind, launcher, chance.randrange(2)))
        if kind == "slurm" and number % 3 != 2:
            assert launcher.returncode == 138, "as docs/distributed.md says"
            assert (folder / f"checkpoints/checkpoint-{STRIDE * (number + 1)}/COMMIT").exists()
    assert "unexpected" not in (tmp_path / "errors").read_text()
    last = [*settings, "run.name=killed", *(["distributed.processes=1"] if is_sample else [])]
    outcome = (run_here if is_sample else run)("train", *last, cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    assert "Traceback" not in outcome.stderr
    undisturbed = tmp_path / "runs/undisturbed"
    assert losses(folder) == pytest.approx(losses(undisturbed), rel=5e-6 if is_sample else 0.0)
    if not is_sample:
        weights = f"checkpoints/checkpoint-{steps}/model.safetensors"
        assert (folder / weights).read_bytes() == (undisturbed / weights).read_bytes()
