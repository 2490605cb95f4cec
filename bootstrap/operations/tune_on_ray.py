"""Starts the command ``tune`` several times on the machines of a Ray cluster."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.bootstrap.process.exit_codes import ExitCode, code_of_child
from holdfast.domain.errors import ConfigurationError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MISSING = '--ray needs another package: pip install "holdfast-lm[ray]"'


def tune_on_ray(arguments: Sequence[str], num_tasks: int, report: Callable[[str], object]) -> int:
    """Run ``holdfast`` with ``arguments`` in ``num_tasks`` tasks of Ray, in the current folder; return the exit code.

    The cluster is that of ``RAY_ADDRESS``, or this machine; all machines need the folder at the same path. A task whose
    machine dies is started again. Raises ``ConfigurationError`` without the extra ``ray``, and ``TrainingError`` if the
    cluster ends the tasks.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise ConfigurationError(MISSING) from error
    ray.init(log_to_driver=False, include_dashboard=False, ignore_reinit_error=True)
    try:
        share = share_of_task([node["Resources"] for node in ray.nodes() if node["Alive"]], num_tasks)
        report(f"{num_tasks} tasks on Ray, each with {share['num_cpus']:g} processors and {share['num_gpus']:g} GPUs")
        task = ray.remote(max_retries=-1, **share)(drive)
        codes = ray.get([task.remote([*arguments], str(Path.cwd())) for _ in range(num_tasks)])
    except ray.exceptions.RayError as error:
        msg = f"Ray ended the search: {error}; the same command continues it"
        raise TrainingError(msg) from error
    finally:
        ray.shutdown()
    return next((code for code in codes if code), ExitCode.FINISHED)


def share_of_task(machines: Sequence[Mapping[str, float]], num_tasks: int) -> dict[str, Any]:
    """Return the processors and GPUs of each of ``num_tasks`` on ``machines``, no more than the largest one has."""
    found = {}
    for name, key, least in (("CPU", "num_cpus", 1), ("GPU", "num_gpus", 0)):
        amounts = [machine.get(name, 0.0) for machine in machines]
        found[key] = max(least, min(math.floor(sum(amounts) / num_tasks), math.floor(max(amounts, default=0.0))))
    return found


def drive(arguments: Sequence[str], folder: str) -> int:
    """Run the command on this machine of the cluster; it ends with the worker of Ray that started it."""
    command = [sys.executable, "-m", "holdfast", *arguments, "--parent", str(os.getpid())]
    return code_of_child(subprocess.run(command, cwd=folder, check=False).returncode)  # noqa: S603  this program
