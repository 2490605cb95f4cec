"""Checks of settings that depend on the number of processes, which a run makes once its processes have met."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.bootstrap.wiring.build_memory_tier import build_memory_tier
from holdfast.bootstrap.wiring.process_group import mesh_of
from holdfast.domain.data.sample_order import RankShard
from holdfast.domain.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.configs.settings import TrainSettings


def refuse_number(settings: TrainSettings, num_processes: int) -> None:
    """Raise ``ConfigurationError`` if a run of ``num_processes`` would refuse the ``settings``.

    A batch that follows from the data, as ``auto`` or as a number of tokens in rows of automatic length, is not known.
    """
    if settings.distributed.kind == "single" and num_processes > 1:
        msg = f"distributed.kind=single trains in one process, but the job has {num_processes}: leave it out"
        raise ConfigurationError(msg)
    rows, length = settings.optimizer.batch_size, settings.data.sequence_length
    if rows is None and settings.optimizer.batch_tokens is not None and isinstance(length, int):
        rows = settings.optimizer.batch_tokens // length
    if isinstance(rows, int):
        RankShard(rows, 0, mesh_of(settings.distributed, num_processes).data_ranks)
    build_memory_tier(settings.state_store, num_processes, lambda: False)
