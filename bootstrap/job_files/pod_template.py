"""The pods of a job, for Kubernetes and for KubeRay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.job_files.job import MARGIN_SECONDS, ExpandedWord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.bootstrap.job_files.job import Job

CONTAINER = "holdfast"
_MEMORY = "shared-memory"


def secret_of(job: Job) -> str:
    """Return the name of the Secret that holds the variables of the job."""
    return f"{job.name}-secrets"


def pod_spec(job: Job, words: Sequence[str] = ()) -> dict[str, Any]:
    """Return the spec of a pod that runs ``words``, or the command of its image.

    The pod has the GPUs, volumes and variables of a machine of ``job``, and memory at /dev/shm, where container
    runtimes give 64 MB. It may take the grace period of the run to end.
    """
    container: dict[str, Any] = {"name": CONTAINER, "image": job.machine.image}
    if words:
        container["command"] = [*map(_literal, words)]
    if job.program.variables:
        container["env"] = [_from_secret(job, name) for name in job.program.variables]
    if resources := _resources(job):
        container["resources"] = resources
    mounts = [{"name": _MEMORY, "mountPath": "/dev/shm"}]  # noqa: S108  a mount in the pod
    volumes: list[dict[str, Any]] = [{"name": _MEMORY, "emptyDir": {"medium": "Memory"}}]
    for number, volume in enumerate(job.machine.volumes):
        mounts.append({"name": f"volume-{number}", "mountPath": volume.path})
        volumes.append({"name": f"volume-{number}", "persistentVolumeClaim": {"claimName": volume.name}})
    container["volumeMounts"] = mounts
    seconds = job.grace_seconds + MARGIN_SECONDS
    return {"terminationGracePeriodSeconds": seconds, "containers": [container], "volumes": volumes}


def _literal(word: str) -> str:
    """Return ``word`` so that Kubernetes leaves a ``$(NAME)`` in it as it is, unless it is to expand it."""
    return str(word) if isinstance(word, ExpandedWord) else word.replace("$(", "$$(")


def _from_secret(job: Job, name: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret_of(job), "key": name}}}


def _resources(job: Job) -> dict[str, Any]:
    machine = job.machine
    requests = {"requests": {"cpu": machine.cpus}} if machine.cpus else {}
    return requests | ({"limits": {"nvidia.com/gpu": machine.gpus}} if machine.gpus else {})
