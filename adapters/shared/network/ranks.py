"""The number of this process among those that train together."""

from __future__ import annotations

from torch import distributed


def rank() -> int:
    """Return the number of this process in torch's group; 0 without a group."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def world_size() -> int:
    """Return the number of processes in torch's group; 1 without a group."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def is_first_rank() -> bool:
    """Return whether this process is rank 0, which writes the files common to all ranks."""
    return rank() == 0
