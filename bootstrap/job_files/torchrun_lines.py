"""The command lines of a job without a scheduler, for a shell on each machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.job_files.job import PORT, ExpandedWord, command_words, shell_command

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.bootstrap.job_files.job import Job


def torchrun_lines(job: Job) -> str:
    """Return the command for all machines of a run, or the command of each part of a preparation."""
    return "\n".join([*_lines(job), ""])


def _lines(job: Job) -> Iterator[str]:
    if job.num_machines == 1:
        yield shell_command(command_words(job))
    elif job.is_preparation:
        for number in range(job.num_machines):
            yield f"# on machine {number + 1} of {job.num_machines}"
            yield shell_command(command_words(job, part=f"{number}/{job.num_machines}"))
    else:
        yield f"# on each of the {job.num_machines} machines, with HEAD set to the address of the first one"
        yield shell_command(command_words(job, endpoint=ExpandedWord(f'"${{HEAD:?}}:{PORT}"'), meeting=job.name))
