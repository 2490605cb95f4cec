"""The number of processes that a planned run will have."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from holdfast.bootstrap.process.launch import processes_to_start
from holdfast.bootstrap.wiring.process_group import is_launched
from holdfast.configs.sections.distributed import (
    AutoDistributedSettings,
    RayDistributedSettings,
    SingleSettings,
)
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.configs.settings import TrainSettings


def planned_ranks(settings: TrainSettings, environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of ranks of a run of ``settings``, the largest one if it may change.

    Raises ``ConfigurationError`` if another launcher decides it and ``environment`` does not have it.
    """
    distributed = settings.distributed
    if isinstance(distributed, SingleSettings):
        return 1
    if is_launched(environment):
        return int(environment["WORLD_SIZE"])
    if isinstance(distributed, AutoDistributedSettings):
        return processes_to_start(settings)
    if isinstance(distributed, RayDistributedSettings):
        return distributed.workers[1]
    if "WORLD_SIZE" not in environment:
        msg = f"with distributed.kind={distributed.kind} another launcher decides the number of processes: set "
        msg += "WORLD_SIZE to it, as in WORLD_SIZE=8 python -m application plan --no-trial"
        raise ConfigurationError(msg)
    return 1


def note_on_ranks(settings: TrainSettings) -> str | None:
    """Return a sentence about a run whose number of ranks may change, else None."""
    distributed = settings.distributed
    if not isinstance(distributed, RayDistributedSettings) or distributed.workers[0] == distributed.workers[1]:
        return None
    fewest, most = distributed.workers
    return f"planned for {most} workers of Ray; with {fewest}, each may need more memory, and a step takes longer"
