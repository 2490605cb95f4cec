"""The description of the machine that a start of a run uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.run_folder.run_environment import environment
from holdfast.bootstrap.wiring.memory_limit import memory_limit_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.bootstrap.wiring.run_parts import ModelParts


def describe_start(parts: ModelParts, excluded: str) -> Mapping[str, Any]:
    """Return the facts of a start for ``run.json``: sizes of a step and of the run, device, limits and environment.

    ``excluded`` is the digest of the documents that are left out. The memory limit is that of a rank, in bytes.
    """
    hardware = parts.trainable.hardware
    return {
        "batch_size": parts.settings.optimizer.num_rows,
        "excluded": excluded,
        "device": hardware.device,
        "parameters": hardware.num_parameters,
        "ranks": parts.process_group.size,
        "memory_limit": memory_limit_of(parts.hardware.get("optimizer.device")),
        "environment": environment(),
    }
