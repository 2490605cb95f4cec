"""Checks of the variables of launchers: no numbers, or several processes that do not know each other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

_NUMBERS = ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")
_MEETING = ("RANK", "MASTER_ADDR", "MASTER_PORT")
_OF_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "MV2_COMM_WORLD_SIZE")
_ALONE = "set distributed.kind=single to train in this process alone"


def check_numbers(environment: Mapping[str, str] = os.environ) -> None:
    """Raise ``ConfigurationError`` if a variable of a launcher such as torchrun is no number."""
    for name in _NUMBERS:
        if (value := environment.get(name)) and not value.isdecimal():
            msg = f"the environment has {name}={value}, which is not the number that a launcher such as torchrun sets: "
            raise ConfigurationError(msg + f"unset {name}")


def refuse_strangers(environment: Mapping[str, str] = os.environ) -> None:
    """Raise ``ConfigurationError`` if this is one of several processes that were started without knowing each other.

    Such are tasks of Slurm or MPI without torchrun's variables: each would train alone in the same run folder. Also for
    a number of processes without the variables by which they meet.
    """
    size = int(environment.get("WORLD_SIZE") or 1)
    if size > 1 and (missing := [name for name in _MEETING if not environment.get(name)]):
        msg = f"the environment has WORLD_SIZE={size}, as if a launcher had started {size} processes, but no "
        msg += f"{', '.join(missing)}: unset WORLD_SIZE, start the processes with torchrun, or {_ALONE}"
        raise ConfigurationError(msg)
    if size > 1 or environment.get("RANK"):
        return
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS")
    if tasks > 1 or _number(environment, "SLURM_PROCID") > 0:
        name = "SLURM_STEP_NUM_TASKS" if tasks > 1 else "SLURM_PROCID"
        msg = (
            f"srun has started this command as one of several tasks ({name}={environment[name]}), and each would train "
        )
        msg += (
            "alone: let `python -m holdfast launch slurm` write the job file, which starts one task on each machine, "
        )
        raise ConfigurationError(msg + f"or {_ALONE}")
    for name in _OF_MPI:
        if (ranks := _number(environment, name)) > 1:
            msg = f"mpirun has started this command as one of {ranks} processes ({name}={ranks}), and each would train "
            msg += f"alone: start it once with distributed.processes={ranks}, or by torchrun on each machine, "
            raise ConfigurationError(msg + f"or {_ALONE}")


def drop_stray_size(environment: MutableMapping[str, str] = os.environ) -> None:
    """Remove the number of processes of a launcher that has set nothing else, as libraries read it too."""
    if not any(environment.get(name) for name in _MEETING):
        environment.pop("WORLD_SIZE", None)


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    return int(value) if value.isdecimal() else 0
