"""The environment of a process: machine, libraries and the variables that steer them."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from holdfast.adapters.shared.device.cpu_count import usable_cpus
from holdfast.version import __version__

if TYPE_CHECKING:
    from collections.abc import Mapping

_LIBRARIES = ("torch", "numpy", "transformers", "accelerate", "deepspeed", "tokenizers", "safetensors")
_VARIABLES = ("CUDA_", "NCCL_", "OMP_", "MKL_", "PYTORCH_", "SLURM_JOB", "SLURM_NODE", "TORCH")
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The variables by which a launcher tells each process its rank."""


def environment() -> Mapping[str, Any]:
    """Return the environment of this process as plain data, secrets included."""
    versions = {"holdfast-lm": __version__}
    for name in _LIBRARIES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    chosen = {
        name: value for name, value in os.environ.items() if name in RANK_VARIABLES or name.startswith(_VARIABLES)
    }
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "usable_processors": usable_cpus(),
        "process": os.getpid(),
        "versions": versions,
        "variables": chosen,
    }
