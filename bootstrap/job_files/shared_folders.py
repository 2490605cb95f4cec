"""Sentences on folders of a job that its machines, or its next start, may not find again."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import psutil

from holdfast.bootstrap.wiring.data_streams import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.bootstrap.job_files.job import Job
    from holdfast.configs.settings import TrainSettings

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
