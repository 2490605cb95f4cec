"""The conditions, in addition to a run's settings, that the exact bits of a step depend on."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from holdfast.configs.sections.optimizer import AccelerateOptimizerSettings, DeepspeedOptimizerSettings
from holdfast.domain.checkpoints.reproducibility import AS_BEGUN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.configs.settings import TrainSettings
    from holdfast.domain.training.parallel_mesh import ParallelMesh


def conditions(
    settings: TrainSettings, chosen: Mapping[str, str], mesh: ParallelMesh, micro_batch: int, data_changes: int = 0
) -> dict[str, str]:
    """Return the conditions by name, for people to read and for a resume to compare.

    ``chosen`` has device and precision. ``data_changes`` is the number of times that the run has continued with other
    data on purpose.
    """
    optimizer = settings.optimizer
    found = {"ranks": str(mesh), "deterministic": str(settings.run.deterministic)}
    found["data"] = f"changed on purpose, number {data_changes}" if data_changes else AS_BEGUN["data"]
    if not isinstance(optimizer, AccelerateOptimizerSettings | DeepspeedOptimizerSettings):
        return found
    import torch

    device = chosen["optimizer.device"]
    is_cpu = device == "cpu"
    return found | {
        "optimizer.kind": optimizer.kind,
        "optimizer.precision": chosen["optimizer.precision"],
        "optimizer.sharding": optimizer.sharding,
        "optimizer.offload": str(optimizer.offload),
        "model.attention": chosen["model.attention"],
        "model.loss": settings.model.loss,
        "model.gradient_checkpointing": settings.model.gradient_checkpointing,
        "optimizer.micro_batch": str(micro_batch),
        "model.compile": settings.model.compile,
        "device": device if is_cpu else torch.get_device_module(device).get_device_name(),
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}" if is_cpu else "",
        "threads": str(torch.get_num_threads()) if is_cpu else "",
        "torch": torch.__version__,
    }
