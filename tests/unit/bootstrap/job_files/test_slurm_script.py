"""The script for sbatch, run by bash with programs in the place of Slurm's."""

from __future__ import annotations

import os
import re
import shlex
import subprocess

import pytest

from holdfast.bootstrap.job_files.render_job import slurm_script
from tests.support.job_examples import job, jobs

PROGRAMS = {
    "srun": 'printf "%s\\n" "$@" > srun.txt; exit "$CODE"',
    "scontrol": 'case $1 in show) printf "n1\\nn2\\n" ;; *) echo "$@" >> scontrol.txt ;; esac',
}
QUEUED = "requeue 17\n"


def execute(script, folder, code=0, restarts=None, **more):
    """Run ``script`` with a srun that ends with ``code``; return its exit code and what scontrol was told."""
    programs = folder / "bin"
    programs.mkdir(exist_ok=True)
    for name, text in PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    (folder / "scontrol.txt").write_text("")
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "CODE": str(code),
        "SLURM_JOB_ID": "17",
        "SLURM_JOB_NODELIST": "n[1-4]",
    } | more
    environment |= {} if restarts is None else {"SLURM_RESTART_COUNT": str(restarts)}
    outcome = subprocess.run(["bash", "-eu", "-c", script], cwd=folder, env=environment, check=False)
    return outcome.returncode, (folder / "scontrol.txt").read_text()


def options(script):
    """Return the options of sbatch in ``script``."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, re.MULTILINE))


@pytest.mark.parametrize("code", [0, 2, 3, 129, 130, 143])
def test_a_job_that_ended_for_good_is_not_queued_again(code, tmp_path):
    """It is finished, a new start would end with the same error, or somebody stopped it."""
    assert execute(slurm_script(job()), tmp_path, code) == (code, "")


@pytest.mark.parametrize("restarts", [None, 0, 1000])
def test_a_job_that_the_time_limit_stopped_is_queued_again(restarts, tmp_path):
    """However often that was, the run goes on."""
    assert execute(slurm_script(job()), tmp_path, 138, restarts) == (138, QUEUED)


@pytest.mark.parametrize("code", [1, 4, 75, 134, 137])
def test_a_job_that_crashed_is_queued_again_a_limited_number_of_times(code, tmp_path):
    """The setting recovery.supervisor.max_restarts is the limit."""
    script = slurm_script(job(max_restarts=3))
    assert execute(script, tmp_path, code) == (code, QUEUED)
    assert execute(script, tmp_path, code, 2) == (code, QUEUED)
    assert execute(script, tmp_path, code, 3) == (code, "")


def test_machines_meet_at_the_first_one(tmp_path):
    """The program srun gets its own number of processors, and each word as it is, with the names that Slurm knows."""
    execute(slurm_script(job(cpus=12)), tmp_path)
    words = (tmp_path / "srun.txt").read_text().splitlines()
    assert words[0] == "--cpus-per-task=12"
    assert words[words.index("--rdzv-endpoint") + 1] == "n1:29500"
    assert words[words.index("--rdzv-id") + 1] == "17"
    assert 'sample.prompt=it\'s "quoted" $HOME `x` $(id)' in words


def test_the_warning_leaves_time_for_the_grace_period():
    """Slurm signals the ranks early enough for the last checkpoint, and keeps the log of earlier starts."""
    found = options(slurm_script(job(grace_seconds=90)))
    name, seconds = found["signal"].split("@")
    assert name == "USR1"
    assert int(seconds) > 90
    assert found["nodes"] == "4"
    assert found["ntasks-per-node"] == "1"
    assert found["gpus-per-node"] == "2"
    assert {"requeue", "open-mode"} <= found.keys()


def test_a_preparation_is_an_array(tmp_path):
    """Each job of the array makes the part of its number, on one machine."""
    script = slurm_script(job(4, "prepare"))
    assert (options(script)["array"], options(script)["nodes"]) == ("0-3", "1")
    execute(script, tmp_path, SLURM_ARRAY_TASK_ID="2")
    words = (tmp_path / "srun.txt").read_text().splitlines()
    assert words[words.index("--part") + 1] == "2/4"


@pytest.mark.parametrize("each", [*jobs()])
def test_bash_understands_each_script(each, tmp_path):
    """Whatever the job has, the script has no mistake, and asks for no GPU where there is none."""
    script = slurm_script(each)
    assert execute(script, tmp_path, SLURM_ARRAY_TASK_ID="0")[0] == 0
    assert ("gpus-per-node" in options(script)) == (each.machine.gpus > 0)
    assert shlex.split(script.replace("\\\n", " "), comments=True)
