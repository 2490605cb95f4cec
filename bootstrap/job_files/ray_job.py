"""The RayJob of a run, for KubeRay."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.job_files.job import ray_words
from holdfast.bootstrap.job_files.pod_template import pod_spec
from holdfast.bootstrap.job_files.yaml_text import as_yaml

if TYPE_CHECKING:
    from holdfast.bootstrap.job_files.job import Job

_GROUP = "machines"


def ray_job(job: Job) -> str:
    """Return the RayJob: a head that only starts the command, and a pod for each machine.

    A machine offers a run as many processors as its processes reserve, so Ray starts no more there. Each new start of
    the job gets a new cluster, and continues from the newest checkpoint.
    """
    slots = {} if job.is_preparation else {"num-cpus": str(job.machine.processes * job.ray_workers.cpus)}
    head = replace(job, machine=replace(job.machine, gpus=0, cpus=None))
    cluster = {
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0"}, "template": {"spec": pod_spec(head)}},
        "workerGroupSpecs": [
            {
                "groupName": _GROUP,
                "replicas": job.num_machines,
                "minReplicas": job.num_machines,
                "maxReplicas": job.num_machines,
                "rayStartParams": slots,
                "template": {"spec": pod_spec(job)},
            }
        ],
    }
    spec: dict[str, Any] = {
        "entrypoint": shlex.join(ray_words(job)),
        "backoffLimit": job.crash_loop,
        "shutdownAfterJobFinishes": True,
        "rayClusterSpec": cluster,
    }
    return as_yaml({"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": {"name": job.name}, "spec": spec})
