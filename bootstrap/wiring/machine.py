"""The description of the machine that a start of a run uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.run_folder.run_environment import environment
from holdfast.bootstrap.wiring.memory_limit import memory_limit_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.ports.optimizer import Hardware


def describe_machine(hardware: Hardware, device: str | None, num_ranks: int) -> Mapping[str, Any]:
    """Return the device, parameters and ranks of the run, the memory limit of a rank in bytes, and the environment.

    ``device`` is that of the optimizer.
    """
    return {
        "device": hardware.device,
        "parameters": hardware.num_parameters,
        "ranks": num_ranks,
        "memory_limit": memory_limit_of(device),
        "environment": environment(),
    }
