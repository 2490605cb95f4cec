"""The process group: the processes that a launcher started, or this process alone."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.bootstrap.adapter_choice.launch_environment import drop_stray_size, refuse_strangers
from holdfast.bootstrap.adapter_choice.lazy import lazy
from holdfast.configs.sections.distributed import mesh_settings
from holdfast.domain.training.parallel_mesh import ParallelMesh

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.configs.sections.distributed import (
        AutoDistributedSettings,
        DistributedSettings,
        RayDistributedSettings,
        TorchDistributedSettings,
    )
    from holdfast.ports.process_group import ProcessGroup


def is_launched(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a launcher such as torchrun started this process as one of several."""
    return int(environment.get("WORLD_SIZE") or 1) > 1


def is_first_rank(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process reports for all processes that a launcher started."""
    return not is_launched(environment) or int(environment.get("RANK") or 0) == 0


def is_restart(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a launcher has restarted this command."""
    return any(environment.get(name, "0") != "0" for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))


def mesh_of(distributed: DistributedSettings, num_ranks: int) -> ParallelMesh:
    """Return the mesh of ``num_ranks`` processes; raises ``ConfigurationError`` if it does not have as many."""
    wanted = mesh_settings(distributed)
    return ParallelMesh.of(
        num_ranks,
        replicate=wanted.replicate,
        context=wanted.context,
        tensor=wanted.tensor,
        pipeline=wanted.pipeline,
    )


def pipeline_schedule(distributed: DistributedSettings) -> str:
    """Return the order of micro-batches in the stages of a pipeline."""
    return mesh_settings(distributed).schedule


def open_group(section: AutoDistributedSettings | RayDistributedSettings) -> ProcessGroup:
    """Return the group of the processes that a launcher started, or of this process alone.

    Raises ``ConfigurationError`` if other processes were started too that do not know this one.
    """
    refuse_strangers()
    return join_group(section) if is_launched() else open_alone(section)


def join_group(section: AutoDistributedSettings | RayDistributedSettings | TorchDistributedSettings) -> ProcessGroup:
    """Return the group of the processes that a launcher started."""
    group: ProcessGroup = lazy("holdfast.adapters.process_group.torch:TorchProcessGroup")(section.timeout_seconds)
    return group


def open_alone(_section: DistributedSettings) -> ProcessGroup:
    """Return the group of this process alone; a number of processes that know no meeting point is dropped."""
    drop_stray_size()
    group: ProcessGroup = lazy("holdfast.adapters.process_group.single:SingleProcessGroup")()
    return group
