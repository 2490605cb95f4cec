"""The job files that there are, and what each scheduler can do."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

import yaml

from holdfast.bootstrap.adapter_choice.process_group import mesh_of
from holdfast.bootstrap.job_files.job import MARGIN_SECONDS, PORT, ExpandedWord, command_words, ray_words, shell_command
from holdfast.bootstrap.process.exit_codes import ExitCode, code_of_signal, final_codes
from holdfast.bootstrap.process.signals import WARNING
from holdfast.bootstrap.stages.attach.resource_balance import build_memory_tier
from holdfast.domain.data.sample_order import RankShard
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from holdfast.bootstrap.job_files.job import Job
    from holdfast.configs.settings import TrainSettings


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


_SKYPILOT_HEAD = 'head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)\n'
_EXTRAS = {"s3://": "s3", "gs://": "gcs"}


def skypilot_task(job: Job) -> str:
    """Return the task for ``sky jobs launch``, which starts it again on other machines if one is taken away.

    Without an image the machines install Holdfast, with its extras for the buckets that the settings name.
    """
    task: dict[str, Any] = {"name": job.name, "num_nodes": job.num_machines, "resources": _sky_resources(job)}
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


def _sky_resources(job: Job) -> dict[str, Any]:
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
    if resources := _pod_resources(job):
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


def _pod_resources(job: Job) -> dict[str, Any]:
    machine = job.machine
    requests = {"requests": {"cpu": machine.cpus}} if machine.cpus else {}
    return requests | ({"limits": {"nvidia.com/gpu": machine.gpus}} if machine.gpus else {})


_WIDTH = 110


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block, as people do."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def as_yaml(*documents: Mapping[str, Any]) -> str:
    """Return ``documents`` as YAML, one after the other, with collections of plain values on one line."""
    plain = [*documents]
    return yaml.dump_all(
        plain, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=_WIDTH, allow_unicode=True
    )


def refuse_number(settings: TrainSettings, num_processes: int) -> None:
    """Raise ``ConfigurationError`` if a run of ``num_processes`` would refuse the ``settings``.

    A batch that follows from the data, as ``auto`` or as a number of tokens in rows of automatic length, is not known.
    """
    if settings.distributed.kind == "single" and num_processes > 1:
        msg = f"distributed.kind=single trains in one process, but the job has {num_processes}: leave it out"
        raise ConfigurationError(msg)
    rows, length = settings.optimizer.batch_size, settings.data.sequence_length
    if rows is None and settings.optimizer.batch_tokens is not None and isinstance(length, int):
        rows = settings.optimizer.batch_tokens // length
    if isinstance(rows, int):
        RankShard(rows, 0, mesh_of(settings.distributed, num_processes).data_ranks)
    build_memory_tier(settings.state_store, num_processes, lambda: False)
