"""The batch script of a job for Slurm's sbatch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.job_files.job import PORT, ExpandedWord, command_words, shell_command
from holdfast.bootstrap.process.exit_codes import code_of_signal, final_codes
from holdfast.bootstrap.process.signals import WARNING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.bootstrap.job_files.job import Job

_CPUS_PER_PROCESS = 8
_MARGIN_SECONDS = 30  # after the end of the run, for the script to queue the job again
_HEAD = 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_ENDING = """ && code=0 || code=$?
case $code in
  {final}) ;;  # finished, stopped by hand, or an error that a new start does not cure
  {warned}) scontrol requeue "$SLURM_JOB_ID" ;;  # stopped ahead of the time limit, with a checkpoint
  *) [ "${{SLURM_RESTART_COUNT:-0}}" -ge {most} ] || scontrol requeue "$SLURM_JOB_ID" ;;  # crashed
esac
exit $code
"""


def slurm_script(job: Job) -> str:
    """Return the script for ``sbatch``, that of an array of jobs if it prepares data in parts.

    Slurm announces the time limit by SIGUSR1, early enough for the last checkpoint, and the script queues the job
    again. srun does not inherit the option ``--cpus-per-task`` of sbatch, so it gets its own.
    """
    cpus = job.machine.cpus or _CPUS_PER_PROCESS * job.machine.processes
    lines = ["#!/bin/bash", *(f"#SBATCH --{option}" for option in _options(job, cpus))]
    if job.needs_meeting:
        lines.append(_HEAD)
    words = command_words(
        job,
        endpoint=ExpandedWord(f'"$head:{PORT}"'),
        meeting=ExpandedWord('"$SLURM_JOB_ID"'),
        part=ExpandedWord(f'"$SLURM_ARRAY_TASK_ID/{job.num_machines}"'),
    )
    warned = code_of_signal(WARNING)
    final = "|".join(str(code) for code in sorted(final_codes()) if code != warned)
    ending = _ENDING.format(final=final, warned=warned, most=job.max_restarts)
    return "\n".join([*lines, shell_command(words, before=f"srun --cpus-per-task={cpus} ") + ending])


def _options(job: Job, cpus: int) -> Iterator[str]:
    is_array = job.is_preparation and job.num_machines > 1
    yield f"job-name={job.name}"
    if is_array:
        yield f"array=0-{job.num_machines - 1}"
    yield f"nodes={1 if is_array else job.num_machines}"
    yield "ntasks-per-node=1"
    if job.machine.gpus:
        yield f"gpus-per-node={job.machine.gpus}"
    yield f"cpus-per-task={cpus}"
    if not job.is_preparation:
        yield f"signal={WARNING.name.removeprefix('SIG')}@{job.grace_seconds + _MARGIN_SECONDS}"
    yield "requeue"
    yield "open-mode=append"
    yield f"output={'%x-%A_%a' if is_array else '%x-%j'}.log"
