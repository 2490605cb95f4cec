"""The indexed Job of a run for Kubernetes, and the Service by which its pods find each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.job_files.job import PORT, ExpandedWord, command_words
from holdfast.bootstrap.job_files.pod_template import CONTAINER, pod_spec
from holdfast.bootstrap.job_files.yaml_text import as_yaml
from holdfast.bootstrap.process.exit_codes import ExitCode

if TYPE_CHECKING:
    from holdfast.bootstrap.job_files.job import Job

_LARGEST = 2**31 - 1
_LABEL = "batch.kubernetes.io/job-name"  # Kubernetes gives it to each pod of a Job


def kubernetes_job(job: Job) -> str:
    """Return the Job, with one pod for each machine or part, and the Service if the pods must find each other."""
    return as_yaml(*([_service(job)] if job.needs_meeting else []), _job(job))


def _service(job: Job) -> dict[str, Any]:
    """Return a headless Service, which gives each pod a name from its start on, not only once it is ready."""
    spec = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {_LABEL: job.name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": job.name}, "spec": spec}


def _job(job: Job) -> dict[str, Any]:
    endpoint = f"{job.name}-0.{job.name}:{PORT}"
    part = ExpandedWord(f"$(JOB_COMPLETION_INDEX)/{job.num_machines}")
    words = command_words(job, endpoint=endpoint, meeting=job.name, part=part)
    network = {"subdomain": job.name} if job.needs_meeting else {}
    spec = {
        "completions": job.num_machines,
        "parallelism": job.num_machines,
        "completionMode": "Indexed",
        "backoffLimit": min(_LARGEST, job.max_restarts * job.num_machines),  # each pod of a start counts
        "podFailurePolicy": {"rules": _rules()},
        "template": {"spec": {**network, "restartPolicy": "Never", **pod_spec(job, words)}},
    }
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": job.name}, "spec": spec}


def _rules() -> list[dict[str, Any]]:
    """Return the rules that end the Job where a new start cures nothing, and that do not count lost machines."""
    final = [int(ExitCode.CONFIGURATION), int(ExitCode.DATA)]
    return [
        {"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": final}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
    ]
