"""The task of a run for SkyPilot's managed jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.job_files.job import PORT, ExpandedWord, command_words, shell_command
from holdfast.bootstrap.job_files.yaml_text import as_yaml
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    from holdfast.bootstrap.job_files.job import Job

_HEAD = 'head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n'
_EXTRAS = {"s3://": "s3", "gs://": "gcs"}


def skypilot_task(job: Job) -> str:
    """Return the task for ``sky jobs launch``, which starts it again on other machines if one is taken away.

    Without an image the machines install Holdfast, with its extras for the buckets that the settings name.
    """
    task: dict[str, Any] = {"name": job.name, "num_nodes": job.num_machines, "resources": _resources(job)}
    if job.program.variables:
        task["secrets"] = dict.fromkeys(job.program.variables)
    if job.machine.volumes:
        task["volumes"] = {volume.path: volume.name for volume in job.machine.volumes}
    if job.machine.image is None:
        task["setup"] = f"pip install {_package(job)}"
    words = command_words(
        job,
        endpoint=ExpandedWord(f'"$head:{PORT}"'),
        meeting=job.name,
        part=ExpandedWord('"$SKYPILOT_NODE_RANK/$SKYPILOT_NUM_NODES"'),
    )
    task["run"] = f"{_HEAD if job.needs_meeting else ''}{shell_command(words)}\n"
    return as_yaml(task)


def _package(job: Job) -> str:
    text = " ".join(job.program.settings)
    extras = [extra for scheme, extra in _EXTRAS.items() if scheme in text]
    return f"'holdfast-lm[{','.join(extras)}]'" if extras else "holdfast-lm"


def _resources(job: Job) -> dict[str, Any]:
    machine = job.machine
    found: dict[str, Any] = {}
    if machine.gpus:
        found["accelerators"] = f"{machine.accelerator}:{machine.gpus}"
    if machine.cpus:
        found["cpus"] = f"{machine.cpus}+"
    if machine.image is not None:
        found["image_id"] = f"docker:{machine.image}"
    recovery = {"max_restarts_on_errors": job.crash_loop, "recover_on_exit_codes": [int(ExitCode.RESTART_NEEDED)]}
    return found | {"job_recovery": recovery}
