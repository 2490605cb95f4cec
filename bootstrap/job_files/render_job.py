"""The job files that there are, and what each scheduler can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from holdfast.bootstrap.job_files.kubernetes_job import kubernetes_job
from holdfast.bootstrap.job_files.pod_template import secret_of
from holdfast.bootstrap.job_files.ray_job import ray_job
from holdfast.bootstrap.job_files.skypilot_task import skypilot_task
from holdfast.bootstrap.job_files.slurm_script import slurm_script
from holdfast.bootstrap.job_files.torchrun_lines import torchrun_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.bootstrap.job_files.job import Job


@final
@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job file: its function ``render``, and the ``suffix`` of its name.

    ``secrets`` returns how the job gets its environment variables, as the end of a sentence. With ``has_own_disks`` its
    machines are not those of a cluster with shared folders: they see nothing but volumes. A kind that ``takes_image``
    runs container images, and one that ``needs_image`` nothing else.
    """

    render: Callable[[Job], str]
    suffix: str
    secrets: Callable[[Job], str]
    has_own_disks: bool = True
    takes_image: bool = True
    needs_image: bool = False


def _in_secret(job: Job) -> str:
    name = secret_of(job)
    return f"put them into the Secret {name}: kubectl create secret generic {name} --from-env-file=FILE"


KINDS = {
    "slurm": Kind(
        slurm_script,
        ".sh",
        lambda _: "set them where sbatch is called, which passes them on",
        has_own_disks=False,
        takes_image=False,
    ),
    "kubernetes": Kind(kubernetes_job, ".yaml", _in_secret, needs_image=True),
    "ray": Kind(ray_job, ".yaml", _in_secret, needs_image=True),
    "skypilot": Kind(
        skypilot_task,
        ".yaml",
        lambda job: (
            "set them, and call sky jobs launch " + " ".join(f"--secret {name}" for name in job.program.variables)
        ),
    ),
    "torchrun": Kind(
        torchrun_lines,
        ".sh",
        lambda _: "set them on each machine",
        has_own_disks=False,
        takes_image=False,
    ),
}
