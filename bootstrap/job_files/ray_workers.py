"""The workers of a job on Ray, which have to agree with its machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.job_files.job import RayWorkers
from holdfast.configs.sections.distributed import AutoDistributedSettings, RayDistributedSettings
from holdfast.domain.counting import counted
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.bootstrap.job_files.job import Machine
    from holdfast.configs.sections.distributed import DistributedSettings

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
