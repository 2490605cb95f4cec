"""A killed rank costs no step where another rank has the whole state."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.support.command_line import Hold, corpus, environment, losses, run, tiny, wait_for_step

STRIDE = 8


def begin(settings, home):
    """Start two ranks; return their launcher."""
    with (home / "errors").open("a") as errors:
        command = [sys.executable, "-m", "application", "train", *settings]
        return subprocess.Popen(command, cwd=home, env=environment(), stdout=errors, stderr=errors)


def kill_rank(launcher, number):
    ranks = psutil.Process(launcher.pid).children(recursive=True)
    chosen = [rank for rank in ranks if rank.environ().get("RANK") == str(number)]
    os.kill(chosen[0].pid, signal.SIGKILL)


def newest_checkpoint(folder):
    return max(int(path.name.rpartition("-")[2]) for path in (folder / "checkpoints").glob("checkpoint-*"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("num_kills", [4])
def test_the_first_rank_saves_the_last_complete_step(tmp_path, num_kills):
    """The second of two ranks is killed at random, and no checkpoint is due: each start goes on at that step."""
    chance, hold, folder = random.Random(3), Hold(tmp_path), tmp_path / "runs/killed"
    steps = STRIDE * (num_kills + 1)
    more = (f"run.budget.steps={steps}", "evaluation.every=0", "state_store.every=1000", "optimizer.sharding=ddp")
    settings = tiny(corpus(tmp_path), *more, "distributed.processes=2")
    assert run("train", *settings, "run.name=undisturbed", cwd=tmp_path).returncode == 0
    for number in range(num_kills):
        hold.behind(STRIDE * (number + 1))
        launcher = begin([*settings, "run.name=killed", hold.settings], tmp_path)
        wait_for_step(folder, STRIDE * number + 2, launcher)
        time.sleep(chance.uniform(0, 0.3))
        kill_rank(launcher, 1)
        hold.release()
        assert launcher.wait(timeout=90) != 0
        assert newest_checkpoint(folder) >= max(losses(folder)), (tmp_path / "errors").read_text()[-2000:]
    assert run("train", *settings, "run.name=killed", cwd=tmp_path).returncode == 0
    assert losses(folder) == losses(tmp_path / "runs/undisturbed")
    final = f"checkpoints/checkpoint-{steps}/model.safetensors"
    assert (folder / final).read_bytes() == (tmp_path / "runs/undisturbed" / final).read_bytes()
