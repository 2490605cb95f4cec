"""Hands a job file to the client program of its scheduler."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import psutil

from holdfast.bootstrap.job_files.job import RayWorkers
from holdfast.bootstrap.stages.identify.data_form import cache_folder
from holdfast.configs.sections.distributed import AutoDistributedSettings, RayDistributedSettings
from holdfast.domain.errors import ConfigurationError, TrainingError
from holdfast.domain.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from holdfast.bootstrap.job_files.job import Job, Machine
    from holdfast.configs.sections.distributed import DistributedSettings
    from holdfast.configs.settings import TrainSettings

_CLIENTS: Mapping[str, Sequence[str]] = {
    "slurm": ("sbatch",),
    "kubernetes": ("kubectl", "apply", "-f"),
    "ray": ("kubectl", "apply", "-f"),
    "skypilot": ("sky", "jobs", "launch", "--yes"),
}


def client_of(kind: str, variables: Sequence[str] = ()) -> list[str]:
    """Return the words of the command that takes a job file of ``kind`` whose job needs ``variables`` with secrets.

    SkyPilot passes on only those that its command names; other programs pass on all, or none. Raises
    ``ConfigurationError`` if there is no such command, or if its program is not installed here.
    """
    if kind not in _CLIENTS:
        msg = f"{kind} has no scheduler to submit a job to: leave out --submit, and run the printed lines"
        raise ConfigurationError(msg)
    client = _CLIENTS[kind]
    if shutil.which(client[0]) is None:
        msg = f"--submit needs the program {client[0]}, which is not on the PATH: install it, or leave out --submit"
        raise ConfigurationError(msg)
    named = [word for name in variables for word in ("--secret", name)] if kind == "skypilot" else []
    return [*client, *named]


def submit(client: Sequence[str], text: str, suffix: str) -> None:
    """Give the job file ``text`` to ``client``, which prints to the streams of this process.

    Raises ``TrainingError`` if the client fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"job{suffix}")
        path.write_text(text, encoding="utf-8")
        code = subprocess.run([*client, str(path)], check=False).returncode  # noqa: S603  a scheduler's own program
    if code:
        msg = f"{' '.join(client)} ended with code {code}, so the job may not have been submitted"
        raise TrainingError(msg)


SETTINGS = tuple(f"distributed.{name}=" for name in ("kind", "workers", "cpus_per_worker", "gpus_per_worker"))
"""The beginnings of the words that the job itself gives to the command."""


def workers_of(distributed: DistributedSettings, num_machines: int, machine: Machine) -> RayWorkers:
    """Return the workers of a run with the settings ``distributed`` on ``num_machines``, one for each process.

    Raises ``ConfigurationError`` if the settings are for another launcher or another number of workers, or if the
    processes of a machine cannot have a GPU each.
    """
    number = num_machines * machine.processes
    if machine.gpus and machine.processes > machine.gpus:
        msg = (
            f"{machine.processes} processes of each machine need as many GPUs on Ray, but --gpus is {machine.gpus}: "
            "choose a smaller number with --processes"
        )
        raise ConfigurationError(msg)
    own = max(1, (machine.cpus or 0) // machine.processes)
    if isinstance(distributed, AutoDistributedSettings):
        return RayWorkers(number, own)
    if not isinstance(distributed, RayDistributedSettings):
        msg = f"launch ray starts the processes by distributed.kind=ray, and not by {distributed.kind}: leave it out"
        raise ConfigurationError(msg)
    given, (least, most) = distributed.model_fields_set, distributed.workers
    if "workers" not in given:
        least = most = number
    if most != number:
        msg = (
            f"distributed.workers goes up to {most}, but the job has machines for {counted(number, 'worker')}: "
            f"choose other --nodes or --processes, or write {number}"
        )
        raise ConfigurationError(msg)
    return RayWorkers(least, distributed.cpus_per_worker if "cpus_per_worker" in given else own)


def refuse_ray(distributed: DistributedSettings, kind: str) -> None:
    """Raise ``ConfigurationError`` if ``distributed`` is for Ray; the job file ``kind`` starts processes itself."""
    if isinstance(distributed, RayDistributedSettings):
        msg = f"launch {kind} starts the processes itself, and distributed.kind is ray: leave it out, or use launch ray"
        raise ConfigurationError(msg)


_ON_NETWORK = (
    *("9p", "afs", "beegfs", "ceph", "cifs", "fuse", "gfs", "gluster", "gpfs", "lustre", "nfs", "ocfs"),
    *("orangefs", "panfs", "pvfs", "smb", "virtiofs", "wekafs"),
)
"""How the kinds of file systems begin that several machines may share."""


def notes_on_folders(job: Job, settings: TrainSettings, *, has_own_disks: bool) -> Iterator[str]:
    """Yield a sentence for each folder that all machines of ``job`` need and that is not known to be shared.

    With ``has_own_disks`` the machines see only the volumes of the job, and lose all else at their end; without, they
    see the folders of this machine if these are on a network file system.
    """
    place = "in no volume of the job" if has_own_disks else "on no network file system here"
    if job.is_preparation:
        folder = cache_folder(settings.data, settings.run)
        if job.num_machines > 1 and not _is_shared(folder, job, has_own_disks=has_own_disks):
            yield f"the token cache {folder} is {place}, but all parts need one: set run.cache_dir to a shared folder"
        return
    folder = settings.run.directory
    if _is_shared(folder, job, has_own_disks=has_own_disks):
        return
    if job.num_machines > 1:
        yield f"the run folder {folder} is {place}, but all machines need one folder: set run.dir to a shared folder"
    elif has_own_disks and settings.state_store.archive is None:
        yield (
            f"the run folder {folder} is {place}, so it is lost with its machine: set run.dir to a folder in a volume, "
            "or state_store.archive.url"
        )


def _is_shared(folder: Path, job: Job, *, has_own_disks: bool) -> bool:
    if has_own_disks:
        paths = [PurePosixPath(volume.path) for volume in job.machine.volumes]
        return any(PurePosixPath(folder).is_relative_to(path) for path in paths)
    return _file_system_of(folder.absolute()).startswith(_ON_NETWORK)


def _file_system_of(folder: Path) -> str:
    """Return the kind of the file system that holds ``folder``, or would hold it."""
    mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    return next((mounts[place] for place in (folder.resolve(), *folder.resolve().parents) if place in mounts), "")
