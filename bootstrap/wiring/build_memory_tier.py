"""The memory tier and its limit in this host's memory."""

from __future__ import annotations

import os
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.adapters.shared.tensor_state.file_parts import unpacked
from holdfast.application.checkpointing.memory_tier import MemoryTier
from holdfast.bootstrap.wiring.reserve_host_memory import has_room_beside
from holdfast.configs.sections.state_store import DiskStateStoreSettings
from holdfast.domain.errors import ConfigurationError
from holdfast.ports.state_store import StatePart

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.configs.sections.state_store import RetentionSettings

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  memory, not a disk


def build_memory_tier(chosen: RetentionSettings, num_ranks: int, is_tight: Callable[[], bool]) -> MemoryTier:
    """Return the tier of a run of ``num_ranks``; raises ``ConfigurationError`` if it is on for several ranks."""
    may_overlap = partial(has_room_beside, chosen.background)
    if num_ranks > 1 and chosen.memory_tier == "on":
        msg = "state_store.memory_tier=on is for one process, and this run has several: set it to auto"
        raise ConfigurationError(msg)
    if num_ranks > 1 or chosen.memory_tier == "off":
        return MemoryTier(may_overlap=may_overlap)
    return MemoryTier(
        may_overlap=may_overlap,
        is_tight=is_tight if chosen.memory_tier == "auto" else _never,
        unpack=lambda snapshot: unpacked(
            [part for part in snapshot.parts if isinstance(part, StatePart)], _scratch_of(chosen)
        ),
    )


def _scratch_of(chosen: RetentionSettings) -> Path:
    if isinstance(chosen, DiskStateStoreSettings) and chosen.encryption is not None:
        return chosen.encryption.scratch
    return _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())


def _never() -> bool:
    return False
